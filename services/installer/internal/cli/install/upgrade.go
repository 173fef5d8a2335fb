package install

import (
	"fmt"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/util/version"

	"fairlead.dev/pkg/process"
	"fairlead.dev/services/installer/internal/cli/command"
	"fairlead.dev/services/installer/internal/install/apply"
	"fairlead.dev/services/installer/internal/install/inventory"
)

func newUpgrade(env command.Env) *cobra.Command {
	var f deployFlags
	cmd := &cobra.Command{
		Use:   "upgrade [-f FILE] [--set path=value]",
		Short: "Upgrade an installed revision in place",
		Long: `Upgrade an installed revision in place: as ` + "`fairlead install`" +
			`, if the revision is installed, and the install package is of the same version or of the next
minor one. --force upgrades over several versions, or back. Components are upgraded in the order in which they are installed; each is waited for.

A canary is a second revision beside the first: install it with --revision, move namespaces to it, and uninstall the first. ` +
			"`fairlead rollback`" + ` brings the
specification before the upgrade back.`,
		Example: `  fairlead upgrade -f mesh.yaml
  fairlead upgrade -f mesh.yaml --dry-run`,
		Args: command.Args(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			req, err := f.Request(cmd, env, &f.Cluster)
			if err != nil {
				return err
			}
			return f.install(cmd, env, req, func(p *apply.Plan) error {
				if !p.Record.Stored() || p.Record.State == inventory.Removed {
					return fmt.Errorf("revision %s is not installed in namespace %s: there is nothing to upgrade; run fairlead install", p.Revision,
						p.Namespace)
				}
				text, err := eligible(p.Record.Package, p.Package)
				if err != nil && !f.Force {
					return process.Refusedf("%w; nothing was changed", err)
				}
				if err != nil {
					text = err.Error()
				}
				_, err = fmt.Fprintln(cmd.ErrOrStderr(), text)
				return err
			})
		},
	}
	f.add(cmd)
	completeRevisions(cmd, &f.Cluster)
	return cmd
}

// eligible judges an upgrade from one version of an install package to another.
func eligible(from, to string) (text string, err error) {
	old, errOld := version.ParseGeneric(from)
	fresh, errNew := version.ParseGeneric(to)
	if known := errOld == nil && errNew == nil; !known {
		return fmt.Sprintf("versions are not compared: %q is installed, the install package is %q", from, to), nil
	}
	switch skew := int(fresh.Minor()) - int(old.Minor()); { //nolint:gosec // minor versions are small
	case fresh.Major() != old.Major() || skew > 1:
		return "", fmt.Errorf("%s is installed, and %s is more than one minor version away: upgrade to each version between them, install a "+
			"canary beside it with --revision, or use --force", from, to)
	case fresh.LessThan(old):
		return "", fmt.Errorf("%s is installed, and %s is older: run fairlead rollback with the older install package, or use --force", from, to)
	}
	return fmt.Sprintf("%s is upgraded to %s", from, to), nil
}
