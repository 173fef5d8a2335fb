// Package install has the commands that install, change and check control planes in a cluster (package install below
// internal is the engine), revision tags among them.
package install

import (
	"github.com/spf13/cobra"

	"fairlead.dev/services/installer/internal/cli/command"
)

// Commands are the commands of this group.
func Commands(env command.Env) []*cobra.Command {
	return []*cobra.Command{
		newInstall(env), newUpgrade(env), newRollback(env), newUninstall(env), newDiff(env), newVerifyInstall(env), newPrecheck(env),
		newManifest(env), newProfile(env), newTag(env), newOperator(env),
	}
}
