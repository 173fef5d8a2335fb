package mesh

import (
	"context"
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"fairlead.dev/pkg/clusterkeys"
	"fairlead.dev/pkg/fileio"
	"fairlead.dev/pkg/process"
	"fairlead.dev/services/installer/internal/cli/command"
	"fairlead.dev/services/installer/internal/cli/kubeflags"
	"fairlead.dev/services/installer/internal/clustertrust"
	"fairlead.dev/services/installer/internal/kube"
)

// maxRules bounds the file of --nomad-rules; a ConfigMap has no more.
const maxRules = 1 << 20

type trustFlags struct {
	kubeflags.Cluster
	primary kube.Config
	wanted  clustertrust.Wanted
	nomad   clustertrust.Nomad
	rules   string
	yes     bool
}

func newTrust(env command.Env) *cobra.Command {
	f := &trustFlags{}
	cmd := &cobra.Command{
		Use:   "trust --context CONTEXT | trust --nomad URL --name NAME",
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
the trust.

With --nomad the cluster is one of Nomad, whose workload identities are tokens, and the current context is the primary.
--nomad-rules is a file with a list of rules in YAML. The first that matches a task gives it its service account:

  - {namespace: default, job: web, task: server, account: shop/web}

A name is exact, or "*" for all. Without --nomad-rules the rules stay. Run the command once a day, with --yes and
--remove-old-keys: Nomad makes a new key each month, and shows it two weeks before it signs with it.`,
		Example: `  fairlead remote-clusters trust --context east --namespaces shop,pay
  fairlead remote-clusters trust --context east --remove-old-keys --yes
  fairlead remote-clusters trust --nomad https://nomad.example.com:4646 --name nomad --nomad-rules rules.yaml --namespaces shop`,
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
	fs.StringVar(&f.nomad.From, "nomad", "",
		"https URL of the HTTP API of a cluster of Nomad, or a file with what `nomad operator api /.well-known/jwks.json` prints")
	fs.StringVar(&f.nomad.CAFile, "nomad-ca-file", "", "CAs of --nomad, PEM (default: those of the machine)")
	fs.StringVar(&f.nomad.Issuer, "nomad-issuer", "", "oidc_issuer of its servers, where --nomad is a file (default: none)")
	fs.StringVar(&f.rules, "nomad-rules", "", "file of the rules that give tasks of Nomad service accounts, YAML (default: those that it has)")
	fs.BoolVar(&f.wanted.RemoveOldKeys, "remove-old-keys", false, "remove keys that the cluster has no more")
	fs.BoolVarP(&f.yes, "yes", "y", false, "do not ask")
	for _, file := range []string{"primary-kubeconfig", "nomad", "nomad-ca-file", "nomad-rules"} {
		_ = cmd.MarkFlagFilename(file)
	}
	return cmd
}

func (f *trustFlags) run(cmd *cobra.Command, env command.Env) error {
	if err := f.check(cmd); err != nil {
		return process.Usage(err)
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
	plan, err := f.plan(cmd.Context(), primary)
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

// check says which flags do not go together, and reads the rules.
func (f *trustFlags) check(cmd *cobra.Command) error {
	if f.nomad.From == "" {
		for _, flag := range []string{"nomad-ca-file", "nomad-issuer", "nomad-rules"} {
			if cmd.Flags().Changed(flag) {
				return fmt.Errorf("--%s has no effect without --nomad", flag)
			}
		}
		if f.Context == "" {
			return errors.New("--context is required: the context of the remote cluster; or --nomad, for one of Nomad")
		}
		return nil
	}
	switch {
	case f.Context != "":
		return errors.New("--context names a cluster of Kubernetes, and --nomad one of Nomad; for another primary than that of the current " +
			"context, use --primary-context")
	case f.wanted.Name == "":
		return errors.New("--name is required with --nomad: the id of the cluster")
	case f.rules == "":
		return nil
	}
	text, err := fileio.Read(f.rules, maxRules)
	if err == nil {
		f.wanted.Rules, err = clusterkeys.ParseNomad(string(text))
	}
	if err != nil {
		return fmt.Errorf("--nomad-rules: %w", err)
	}
	return nil
}

// read asks the cluster for its issuer and its keys.
func (f *trustFlags) read(ctx context.Context) (*clustertrust.Tokens, error) {
	what := "cluster " + f.wanted.Name
	if f.nomad.From != "" {
		return clustertrust.ReadNomad(ctx, what, f.nomad)
	}
	remote, err := f.API()
	if err != nil {
		return nil, process.Usage(fmt.Errorf("--context %s: %w", f.Context, err))
	}
	return clustertrust.Read(ctx, what, remote)
}

func (f *trustFlags) plan(ctx context.Context, primary kube.API) (*clustertrust.Plan, error) {
	own, err := clustertrust.Read(ctx, "the primary", primary)
	if err != nil {
		return nil, err
	}
	keys, err := f.read(ctx)
	if err != nil {
		return nil, err
	}
	existing, err := clustertrust.Existing(ctx, primary, f.IstioNamespace)
	if err != nil {
		return nil, err
	}
	return clustertrust.Prepare(f.wanted, own, keys, existing)
}
