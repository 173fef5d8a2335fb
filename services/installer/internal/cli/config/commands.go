// Package config has the commands for the objects of a mesh: they read, write and judge them, and wait until proxies
// have them.
package config

import (
	"github.com/spf13/cobra"

	"fairlead.dev/services/installer/internal/cli/command"
	"fairlead.dev/services/installer/internal/cli/meshflags"
)

// Commands are the commands of this group.
func Commands(env command.Env, flags *meshflags.Flags) []*cobra.Command {
	return []*cobra.Command{
		newConfig(env, flags), newValidate(env), newAnalyze(env), newWait(flags), newMigrate(env),
	}
}
