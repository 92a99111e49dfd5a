package main

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/prego/prego/api"
)

func newRegistryCommand() *cobra.Command {
	cmd := &cobra.Command{Use: "registry", Short: "Credentials of container registries, and what images were resolved to"}
	output := outputFlag(cmd)
	one := func(args []string) string { return "/v1/registries/" + args[0] }
	cmd.AddCommand(
		registrySet(output),
		verb(output, "show HOST", "Show a registry; its password is shown nowhere", 1, http.MethodGet, one, printRegistry),
		gone("delete HOST", "Forget the credentials of a registry", 1, one),
		verb(output, "list", "List the registries that credentials are kept for", 0, http.MethodGet,
			func([]string) string { return "/v1/registries" }, printRegistries),
		verb(output, "rotate", "Seal all passwords under the current master key", 0, http.MethodPost,
			func([]string) string { return "/v1/registries/rotate" }, printRegistries),
		verb(output, "images", "List what images were resolved to", 0, http.MethodGet,
			func([]string) string { return "/v1/image-digests" }, printImages),
		gone("unpin IMAGE", "Have an image resolved anew by the next host that pulls it", 1,
			func(args []string) string { return "/v1/image-digests?image=" + url.QueryEscape(unescaped(args[0])) }),
	)
	return cmd
}

// unescaped is an argument as it was given.
func unescaped(arg string) string {
	s, err := url.PathUnescape(arg)
	if err != nil {
		return arg
	}
	return s
}

func registrySet(output *string) *cobra.Command {
	var in api.PutRegistry
	var file string
	cmd := &cobra.Command{
		Use: "set HOST --username USER [--password-file FILE]", Short: "Keep the credentials of a registry; the password is read from a file or from standard input",
		Long: "Keep the credentials of a registry. HOST is as it stands in images' names, docker.io for Docker Hub.\n" +
			"The password, or an access token, is the first line of the file, or of standard input.",
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			var err error
			if in.Password, err = readSecret(cmd.InOrStdin(), file); err != nil {
				return err
			}
			return asked(cmd, *output, http.MethodPut, "/v1/registries/"+url.PathEscape(args[0]), in, printRegistry)
		},
	}
	cmd.Flags().StringVar(&in.Username, "username", "", "who pulls")
	cmd.Flags().StringVar(&file, "password-file", "", "file that holds the password; standard input when left out")
	_ = cmd.MarkFlagRequired("username")
	return cmd
}

// maxSecret bounds a secret that is read, in bytes.
const maxSecret = 8 << 10

// readSecret reads the first line of a file, or of standard input. A secret is never
// taken from a flag: flags are seen in the list of processes and kept in histories.
func readSecret(stdin io.Reader, file string) (string, error) {
	from := stdin
	if file != "" {
		f, err := os.Open(file) //nolint:gosec // the caller's own file
		if err != nil {
			return "", fmt.Errorf("--password-file: %w", err)
		}
		defer func() { _ = f.Close() }()
		from = f
	}
	line, err := bufio.NewReader(io.LimitReader(from, maxSecret)).ReadString('\n')
	if err != nil && !errors.Is(err, io.EOF) {
		return "", fmt.Errorf("the password: %w", err)
	}
	line = strings.TrimRight(line, "\r\n")
	if line == "" {
		return "", errors.New("the password is empty; give it on standard input, or with --password-file")
	}
	return line, nil
}

func printRegistry(w io.Writer, r api.Registry) {
	fmt.Fprintf(w, "registry %s: user %s, sealed under key %s; changed by %s at %s\n", r.Host, r.Username, r.KeyId, r.UpdatedBy, r.UpdatedAt.Format(time.RFC3339))
}

func printRegistries(w io.Writer, list api.RegistryList) {
	t := tabwriter.NewWriter(w, 2, 4, 2, ' ', 0)
	fmt.Fprintln(t, "REGISTRY\tUSER\tKEY\tCHANGED BY\tAT")
	for _, r := range list.Registries {
		fmt.Fprintf(t, "%s\t%s\t%s\t%s\t%s\n", r.Host, r.Username, r.KeyId, r.UpdatedBy, r.UpdatedAt.Format(time.RFC3339))
	}
	_ = t.Flush()
}

func printImages(w io.Writer, list api.ImageDigestList) {
	t := tabwriter.NewWriter(w, 2, 4, 2, ' ', 0)
	fmt.Fprintln(t, "IMAGE\tDIGEST\tSINCE")
	for _, v := range list.Images {
		fmt.Fprintf(t, "%s\t%s\t%s\n", v.Image, v.Digest, v.ResolvedAt.Format(time.RFC3339))
	}
	_ = t.Flush()
}
