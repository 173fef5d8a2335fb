// Package local has the commands of the local runtime: they run a mesh on this machine (package local below internal),
// and operate it.
package local

import (
	"github.com/spf13/cobra"

	"fairlead.dev/services/installer/internal/cli/command"
	"fairlead.dev/services/installer/internal/cli/meshflags"
)

// Commands are the commands of this group.
func Commands(env command.Env, flags *meshflags.Flags) []*cobra.Command {
	return []*cobra.Command{
		newUp(env, flags), newDown(flags), newRestart(flags), newScale(flags), newDemo(env), newLogs(flags), newCredentials(flags),
	}
}
