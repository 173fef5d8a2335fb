package cluster

import (
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"fairlead.dev/pkg/process"
	"fairlead.dev/services/installer/internal/cli/command"
	"fairlead.dev/services/installer/internal/cli/kubeflags"
	"fairlead.dev/services/installer/internal/cli/output"
	"fairlead.dev/services/installer/internal/injectcheck"
	"fairlead.dev/services/installer/internal/structured"
	"fairlead.dev/services/installer/internal/table"
)

// checkInjectFlags are the flags of `fairlead check-inject`.
type checkInjectFlags struct {
	kubeflags.Cluster
	injectcheck.Subject
	out *output.Format
}

func newCheckInject() *cobra.Command {
	f := checkInjectFlags{out: output.New("json", "yaml")}
	cmd := &cobra.Command{
		Use:   "check-inject [POD[.NAMESPACE] | KIND/NAME]",
		Short: "Say which injector the API server asks about a Pod, and why",
		Long: `Say for each configuration of an injector's webhooks in a cluster whether the API server asks it about a Pod, and by which labels: of a Pod that is
there, of the Pods of a Deployment, StatefulSet or DaemonSet, or with -l of Pods with some labels in the namespace of -n. What the injector then decides by
annotations and its policy, ` + "`fairlead describe pod`" + ` and ` + "`fairlead analyze --kube`" + ` say.

Exit code 0 whether it is asked or not; 1 if there is no such namespace, Pod or other object.`,
		Example: `  fairlead check-inject reviews-v1-7d9f-abcde.shop
  fairlead check-inject -n shop deployment/reviews-v1
  fairlead check-inject -n shop -l app=reviews,istio.io/rev=canary`,
		Args: command.Args(cobra.MaximumNArgs(1)),
		RunE: func(cmd *cobra.Command, a []string) error {
			f.Name = strings.Join(a, "")
			return f.run(cmd)
		},
	}
	f.Add(cmd)
	cmd.Flags().StringVarP(&f.Namespace, "namespace", "n", "", "namespace (default: that of the Pod's name, or \"default\")")
	cmd.Flags().StringVarP(&f.Labels, "labels", "l", "", "labels of Pods, KEY=VALUE, divided by commas, in place of a name")
	output.Flag(cmd, f.out)
	kubeflags.CompleteNamespaces(cmd, &f.Cluster, "namespace")
	return cmd
}

var errNoPod = errors.New("name a Pod, or KIND/NAME, or give labels with -l")

func (f *checkInjectFlags) run(cmd *cobra.Command) error {
	if (f.Name == "") == (f.Labels == "") {
		return process.Usage(errNoPod)
	}
	api, err := f.API()
	if err != nil {
		return err
	}
	checks, err := injectcheck.Check(cmd.Context(), api, f.Subject)
	if err != nil {
		return err
	}
	out := cmd.OutOrStdout()
	if f.out.Value != "" {
		return structured.Print(out, f.out.Value, checks)
	}
	if len(checks) == 0 {
		_, err := fmt.Fprintln(out, "the cluster has no injector: no Pod gets a sidecar; `fairlead install` installs one")
		return err
	}
	tab := &table.Table{Header: []string{"WEBHOOK", "REVISION", "INJECTED", "REASON"}}
	for _, c := range checks {
		tab.Add(c.Webhook, c.Revision, map[bool]string{true: "yes", false: "no"}[c.Injected], c.Reason)
	}
	return tab.Write(out)
}
