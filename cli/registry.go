package cli

import (
	"net/http"
	"net/url"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/prego/prego/api"
)

var registryTable = Table[api.Registry]{ID: "host", Columns: "host: registry, username: user, key_id, updated_by: by, updated_at: changed", Spare: "by, key, changed"}

func registryCommand(c *CLI) *cobra.Command {
	var in api.PutRegistry
	file := ""
	return c.group("registry", "Manage credentials of container registries, and the digests that images were resolved to",
		Action[api.Registry]{
			Use: "set REGISTRY", Short: "Store the credentials of a registry", Method: http.MethodPut, Path: "/v1/registries/{registry}", Table: registryTable,
			Long: "Store the credentials of a registry, which is named as in images' names: docker.io for\nDocker Hub. The password, or an access token, is the first line of the file, or of\n" +
				"standard input.",
			Example: "  prego registry set registry.example.com --username robot --password-file token.txt",
			Flags: func(cmd *cobra.Command, f *pflag.FlagSet) {
				f.StringVar(&in.Username, "username", "", "user who pulls")
				f.StringVar(&file, "password-file", "", "file that holds the password (default: standard input)")
				required(cmd, "username")
			},
			Body: func(v *call) (_ any, err error) {
				in.Password, err = c.secret(v.InOrStdin(), file)
				return in, err
			},
		},
		Show[api.Registry]{Use: "show REGISTRY…", Short: "Show registries; passwords are never shown", Path: "/v1/registries/{registry}", Table: registryTable},
		List[api.Registry]{Short: "List the registries that have credentials", Path: "/v1/registries", Items: "registries", Whole: true, Table: registryTable},
		Delete("delete REGISTRY…", "registry", "/v1/registries/{registry}"),
		Action[api.RegistryList]{
			Use: "rotate", Short: "Re-encrypt all passwords with the current master key", Path: "/v1/registries/rotate",
			Say:   func(*call, api.RegistryList) string { return "sealed:" },
			After: func(in *call, l api.RegistryList) { _ = rows(in.printer, registryTable, l.Registries) }, // its columns are all there
		},
		List[api.ImageDigest]{
			Use: "images", Short: "List the digests that images were resolved to", Path: "/v1/image-digests", Items: "images", Whole: true,
			Table: Table[api.ImageDigest]{ID: "image", Columns: "image, digest, resolved_at: since", Spare: "since"},
		},
		Action[struct{}]{
			Use: "unpin NAME…", Short: "Unpin images, so that the next host that pulls one resolves it again", Method: http.MethodDelete, Path: "/v1/image-digests",
			Query: func(in *call) url.Values { return url.Values{"image": {in.typed}} },
			Say:   func(in *call, _ struct{}) string { return "unpinned " + in.typed },
		},
	)
}
