// Package cluster has the commands for workloads of a cluster, and for machines that join its mesh.
package cluster

import (
	"github.com/spf13/cobra"

	"fairlead.dev/services/installer/internal/cli/command"
)

// Commands are the commands of this group.
func Commands(env command.Env) []*cobra.Command {
	return []*cobra.Command{
		newCheckInject(), newKubeInject(env), newVM(), newWorkload(),
	}
}
