// Package proxy has the commands that show what single proxies have and why, and operate them.
package proxy

import (
	"github.com/spf13/cobra"

	"fairlead.dev/services/installer/internal/cli/command"
	"fairlead.dev/services/installer/internal/cli/meshflags"
)

// Commands are the commands of this group.
func Commands(env command.Env, flags *meshflags.Flags) []*cobra.Command {
	return []*cobra.Command{
		newProxyStatus(flags), newProxyConfig(env, flags), newWhy(flags), newDescribe(env, flags), newProxy(flags),
	}
}
