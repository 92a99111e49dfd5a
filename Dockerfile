# Built by tools/image.sh (make image), which makes the context: static binaries and
# the certificates of public authorities. There is nothing else in it, no shell either.
FROM scratch
COPY . /
USER 65532:65532
ENV PREGO_AGENTGW_AGENT_BINARY=/prego-agent PREGO_KEYS_DIR=/keys
ENTRYPOINT ["/prego"]
