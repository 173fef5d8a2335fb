// Package multicluster has the commands for meshes of several clusters that ask API servers alone.
package multicluster

import (
	"github.com/spf13/cobra"
)

// Commands are the commands of this group.
func Commands() []*cobra.Command {
	return []*cobra.Command{
		newCreateRemoteSecret(), newClusters(),
	}
}
