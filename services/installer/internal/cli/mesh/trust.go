package mesh

import (
	"context"
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"fairlead.dev/pkg/process"
	"fairlead.dev/services/installer/internal/cli/command"
	"fairlead.dev/services/installer/internal/cli/kubeflags"
	"fairlead.dev/services/installer/internal/clustertrust"
	"fairlead.dev/services/installer/internal/kube"
)

type trustFlags struct {
	kubeflags.Cluster
	primary kube.Config
	wanted  clustertrust.Wanted
	yes     bool
}

func newTrust(env command.Env) *cobra.Command {
	f := &trustFlags{}
	cmd := &cobra.Command{
		Use:   "trust --context CONTEXT",
		Short: "Have the ca take the tokens of a remote cluster",
		Long: `Read the issuer and the keys of a remote cluster's tokens from its API server, show the fingerprints of the keys, ask,
and write them into a ConfigMap in the control plane's namespace of the primary. The ca and the xds-servers take tokens
of the cluster from then on, and its workloads get certificates, without a request to its API server.

Both API servers are asked with the rights of whoever runs the command. --context names the remote cluster, the current
context of the kubeconfig the primary, unless --primary-context or --primary-kubeconfig name another.

A token proves an identity in --namespaces alone, and never one of the mesh's own services. Without --namespaces the
rule stays, at first all namespaces.

Run the command again after the keys of the cluster have changed. Keys that its API server has no more stay trusted,
because tokens that they have signed are valid still, until --remove-old-keys removes them. Removing the ConfigMap ends
the trust.`,
		Example: `  fairlead remote-clusters trust --context east --namespaces shop,pay
  fairlead remote-clusters trust --context east --remove-old-keys --yes`,
		Args: command.Args(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error { return f.run(cmd, env) },
	}
	f.Add(cmd)
	fs := cmd.Flags()
	fs.StringVar(&f.primary.Context, "primary-context", "", "context of the primary, to which the ca belongs (default: the current one)")
	fs.StringVar(&f.primary.Kubeconfig, "primary-kubeconfig", "", "kubeconfig file of the primary (default: that of --kubeconfig)")
	fs.StringVar(&f.wanted.Name, "name", "", "id of the cluster, the CLUSTER_ID of its proxies (default: the value of --context)")
	fs.StringSliceVar(&f.wanted.Namespaces, "namespaces", nil,
		"namespaces of the identities that its tokens may prove; '*': all but those of the mesh's own services")
	fs.StringVar(&f.wanted.TrustDomain, "trust-domain", "", "trust domain of these identities, the mesh's own (default: that)")
	fs.BoolVar(&f.wanted.RemoveOldKeys, "remove-old-keys", false, "remove keys that its API server has no more")
	fs.BoolVarP(&f.yes, "yes", "y", false, "do not ask")
	_ = cmd.MarkFlagFilename("primary-kubeconfig")
	return cmd
}

func (f *trustFlags) run(cmd *cobra.Command, env command.Env) error {
	if f.Context == "" {
		return process.Usage(errors.New("--context is required: the context of the remote cluster"))
	}
	if cmd.Flags().Changed("namespaces") && len(f.wanted.Namespaces) == 0 {
		return process.Usage(errors.New("--namespaces names none; name some, or '*' for all but those of the mesh's own services"))
	}
	if f.wanted.Name == "" {
		f.wanted.Name = f.Context
	}
	f.wanted.ControlPlane = f.IstioNamespace
	if f.primary.Kubeconfig == "" {
		f.primary.Kubeconfig = f.Kubeconfig
	}
	f.primary.Timeout = f.Timeout
	primary, err := f.primary.API()
	if err != nil {
		return process.Usage(fmt.Errorf("the primary: %w", err))
	}
	remote, err := f.API()
	if err != nil {
		return process.Usage(fmt.Errorf("--context %s: %w", f.Context, err))
	}
	plan, err := f.plan(cmd.Context(), primary, remote)
	if err != nil {
		return err
	}
	out := cmd.OutOrStdout()
	plan.Print(out)
	if !plan.Changes() {
		fmt.Fprintf(out, "ConfigMap %s/%s says so already.\n", f.IstioNamespace, plan.ConfigMap)
		return nil
	}
	if !f.yes {
		question := fmt.Sprintf("Compare the fingerprints with what the owner of %s says. Take its tokens from now on?", plan.Cluster.Name)
		if yes, err := command.Confirm(env.In, cmd.ErrOrStderr(), question, "--yes"); err != nil || !yes {
			return command.OrNothingChanged(err)
		}
	}
	if err := plan.Write(cmd.Context(), primary); err != nil {
		return err
	}
	fmt.Fprintf(out, "ConfigMap %s/%s written; the ca takes the tokens of %s within seconds, xds-servers within two minutes.\n",
		f.IstioNamespace, plan.ConfigMap, plan.Cluster.Name)
	return nil
}

func (f *trustFlags) plan(ctx context.Context, primary, remote kube.API) (*clustertrust.Plan, error) {
	own, err := clustertrust.Read(ctx, "the primary", primary)
	if err != nil {
		return nil, err
	}
	keys, err := clustertrust.Read(ctx, "cluster "+f.wanted.Name, remote)
	if err != nil {
		return nil, err
	}
	existing, err := clustertrust.Existing(ctx, primary, f.IstioNamespace)
	if err != nil {
		return nil, err
	}
	return clustertrust.Prepare(f.wanted, own, keys, existing)
}
