// Package ca has the commands that show who signs the mesh's certificates, and rotate the root and swap the signer.
package ca

import (
	"github.com/spf13/cobra"

	"fairlead.dev/services/installer/internal/cli/command"
	"fairlead.dev/services/installer/internal/cli/meshflags"
)

// Commands are the commands of this group.
func Commands(env command.Env, flags *meshflags.Flags) []*cobra.Command {
	return []*cobra.Command{
		command.Group("ca", "Show who signs the mesh's certificates; rotate the root, swap the signer, keep backups",
			newStatus(env, flags), newRoots(flags), newRotate(env, flags), newSwap(env, flags), backupCommand(flags),
			restoreCommand()),
	}
}

// addMesh adds the flags that say which mesh's ca is asked.
func addMesh(cmd *cobra.Command, flags *meshflags.Flags) {
	flags.AddCA(cmd.Flags())
	flags.AddCluster(cmd)
}
