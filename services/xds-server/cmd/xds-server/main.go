// Command xds-server turns the mesh that config-watcher streams into xDS, and serves it to the proxies.
package main

import (
	"github.com/spf13/cobra"

	"fairlead.dev/pkg/service"
	"fairlead.dev/services/xds-server/internal/app"
)

func main() { service.Main(command()) }

func command() *cobra.Command {
	return service.Command(&cobra.Command{
		Use:   "xds-server --config-watcher-address HOST:PORT --ca-address HOST:PORT --root-cert-file FILE",
		Short: "Serve xDS to the mesh's proxies",
		Long: "xds-server follows the mesh that config-watcher streams, builds each proxy's Envoy configuration and serves it by ADS, delta " +
			"and " +
			"state of the world.\n\nExit codes: 0 stopped when asked to, 1 failed (the message says why), 2 wrong flags.",
	}, &app.Options{}, app.Open)
}
