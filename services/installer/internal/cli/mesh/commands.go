// Package mesh has the commands that show a mesh as a whole, of this machine or of a cluster.
package mesh

import (
	"github.com/spf13/cobra"

	"fairlead.dev/services/installer/internal/cli/command"
	"fairlead.dev/services/installer/internal/cli/meshflags"
)

// Commands are the commands of this group.
func Commands(env command.Env, flags *meshflags.Flags) []*cobra.Command {
	return []*cobra.Command{
		newVersion(env, flags), newBugReport(env, flags), newDashboard(flags), newRemoteClusters(env, flags), newSources(flags),
	}
}
