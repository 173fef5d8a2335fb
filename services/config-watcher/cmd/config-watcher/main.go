// Command config-watcher reads the mesh's configuration, validates and normalises it, and streams it to the
// xds-servers.
package main

import (
	"os"

	"github.com/spf13/cobra"

	"fairlead.dev/pkg/footprint"
	"fairlead.dev/pkg/service"
	"fairlead.dev/pkg/terminal"
	"fairlead.dev/services/config-watcher/internal/app"
)

func main() {
	footprint.CollectOften() // the mesh is held here once for all xds-servers and changes little at a time
	service.Main(command())
}

func command() *cobra.Command {
	cmd := service.Command(&cobra.Command{
		Use:   "config-watcher --root-cert-file FILE [--config-dir DIR]... [--store-dir DIR]",
		Short: "Read, validate and stream the mesh's configuration",
		Long: "config-watcher reads Istio's and Kubernetes' objects from files and from its configuration API, validates and normalises them,\n" +
			"numbers the states of the mesh and streams them to the xds-servers.\n\n" +
			"Exit codes: 0 stopped when asked to, 1 failed at run time, 2 wrong flags, a directory that another config-watcher uses, or a\n" +
			"key that does not decrypt what is there. A broken object never ends the process: it is reported in the log, in metrics and at\n" +
			"/debug/sources, and its last good version stays, across restarts with --state-dir.",
	}, &app.Options{}, app.Open)
	cmd.SetOut(terminal.Safe(os.Stdout))
	cmd.SetErr(terminal.Safe(os.Stderr))
	cmd.CompletionOptions.DisableDefaultCmd = true
	cmd.AddCommand(newValidate(), newAnalyze(), newMigrate())
	return cmd
}
