// Package production has only tests. TestThreeHosts sets three Debians up as docs/production-three-hosts.md describes,
// and cuts the power of each.
//
// TestTheStackOfDockerCompose runs the services of docker-compose.yml, without Compose and without an engine. Compose
// renders the file; each service is then started as declared, in separate namespaces: command, user, groups,
// environment, secrets, mounts, networks and names, read-only and without capabilities, in the declared order, with the
// declared health checks. Only images that can't be had here are substituted (docs/production.md, "What is tested").
package production
