package multicluster

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"fairlead.dev/pkg/process"
	"fairlead.dev/proto/fairlead/contract"
	"fairlead.dev/services/installer/internal/cli/command"
	"fairlead.dev/services/installer/internal/cli/kubeflags"
	"fairlead.dev/services/installer/internal/cli/output"
	"fairlead.dev/services/installer/internal/kube"
	"fairlead.dev/services/installer/internal/remotesecret"
)

// tokenWait is how long Kubernetes may take to fill in a token.
const tokenWait = 20 * time.Second

// secretFlags are the flags of create-remote-secret.
type secretFlags struct {
	kubeflags.Cluster
	remotesecret.Options
	to     []string
	revoke bool
	// Of istioctl, with one value each.
	authType, kind string
}

func newCreateRemoteSecret() *cobra.Command {
	var f secretFlags
	cmd := &cobra.Command{
		Use:   "create-remote-secret",
		Short: "Make the Secret by which other clusters read this one",
		Long: `Print the Secret by which the control planes of other clusters read the services and endpoints of a cluster, as istioctl
create-remote-secret does: it has the cluster's id as key and, as value, a kubeconfig with a token of a service account.
The account gets the right to read if it is made here. The output holds a credential.

With --type config it is the Secret istio-kubeconfig, by which an external control plane reads the configuration of the
cluster, with a token of config-watcher's account there, which the profile external makes.

With --to the Secret is written into these contexts instead, each by one write: a cluster that is read already has no
moment without its entry. --rotate makes a new token. The earlier ones stay valid, until --revoke removes them after the
new one has been written everywhere.`,
		Example: "  fairlead create-remote-secret --context east --name east | kubectl apply --context west -f -\n" +
			"  fairlead create-remote-secret --context east --name east --rotate --revoke --to west",
		Args: command.Args(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error { return f.run(cmd) },
	}
	f.Add(cmd)
	fs := cmd.Flags()
	fs.StringVar(&f.Name, "name", "", "id of the cluster; that of its namespace kube-system if not given")
	fs.StringVarP(&f.Namespace, "namespace", "n", "", "namespace of the account and of the Secret; that of --istioNamespace if not given")
	fs.StringVar(&f.Account, "service-account", remotesecret.Account, "service account whose token is in the Secret")
	fs.BoolVar(&f.Create, "create-service-account", true, "make the account, with the right to read, if it is not there")
	fs.StringVar(&f.TokenSecret, "secret-name", "", "Secret with the token to use; the newest of the account if not given")
	fs.StringVar(&f.Server, "server", "", "URL of the API server for those who read; that of the kubeconfig if not given")
	fs.StringVar(&f.TLSServerName, "tls-server-name", "", "name in the API server's certificate, if --server has another")
	fs.BoolVar(&f.Rotate, "rotate", false, "make a new token")
	fs.StringArrayVar(&f.to, "to", nil, "context of a cluster to write the Secret into, instead of printing it; may be repeated")
	fs.BoolVar(&f.revoke, "revoke", false, "remove the account's other tokens after the Secret has been written; needs --to")
	fs.StringVar(&f.authType, "auth-type", "bearer-token", "istioctl's; bearer-token alone")
	fs.StringVar(&f.kind, "type", "remote", "what the Secret is for: remote, or config, by which an external control plane reads the "+
		"configuration of the cluster")
	_ = fs.MarkHidden("auth-type")
	_ = cmd.RegisterFlagCompletionFunc("to", func(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
		return f.Contexts(), cobra.ShellCompDirectiveNoFileComp
	})
	return cmd
}

func (f *secretFlags) run(cmd *cobra.Command) error {
	switch {
	case f.authType != "bearer-token":
		return process.Usagef("--auth-type %s: config-watcher runs no program and no auth provider for a kubeconfig; leave it out", f.authType)
	case f.kind != "remote" && f.kind != "config":
		return process.Usagef("--type %s: fairlead makes Secrets of types remote and config; use istioctl", f.kind)
	case f.revoke && len(f.to) == 0:
		return process.Usage(errors.New("--revoke needs --to: the tokens of before may go once the new one is in use"))
	case f.Rotate && f.TokenSecret != "":
		return process.Usage(errors.New("--rotate and --secret-name exclude each other"))
	}
	if f.ForConfig = f.kind == "config"; f.ForConfig && !cmd.Flags().Changed("service-account") {
		f.Account, f.Create = contract.ConfigWatcherAccount, false
	}
	if f.Namespace == "" {
		f.Namespace = f.IstioNamespace
	}
	config, err := f.Rest()
	if err != nil {
		return process.Usage(err)
	}
	if f.Server == "" {
		f.Server = config.Host
	}
	of := remotesecret.Cluster{Wait: tokenWait}
	if of.API, err = kube.NewAPI(config); err != nil {
		return err
	}
	if of.Installer, err = f.Connect(); err != nil {
		return err
	}
	// Who cannot be written to is found before a token is made.
	targets := map[string]kube.API{}
	for _, name := range f.to {
		at := f.Config
		at.Context = name
		if targets[name], err = at.API(); err != nil {
			return process.Usagef("--to %s: %w", name, err)
		}
	}
	made, err := remotesecret.Make(cmd.Context(), of, f.Options)
	if err != nil {
		return err
	}
	output.Warn(cmd.ErrOrStderr(), made.Warnings)
	if len(f.to) == 0 {
		text, err := made.Manifest()
		if err != nil {
			return err
		}
		_, err = cmd.OutOrStdout().Write(text)
		return err
	}
	return f.write(cmd, of, made, targets)
}

// write puts the Secret into the clusters of --to.
func (f *secretFlags) write(cmd *cobra.Command, of remotesecret.Cluster, made *remotesecret.Made, targets map[string]kube.API) error {
	ctx, out := cmd.Context(), cmd.OutOrStdout()
	var failed []error
	for _, name := range f.to {
		secret, err := made.Apply(ctx, targets[name])
		if err != nil {
			failed = append(failed, fmt.Errorf("--to %s: %w", name, err))
			continue
		}
		fmt.Fprintf(out, "%s: Secret %s/%s names the cluster, with the token of Secret %s\n", name, f.Namespace, secret, made.Token)
	}
	if err := errors.Join(failed...); err != nil || !f.revoke {
		return err
	}
	gone, err := of.Revoke(context.WithoutCancel(ctx), f.Options, made.Token)
	if len(gone) > 0 {
		fmt.Fprintf(out, "revoked: %s\n", strings.Join(gone, ", "))
	}
	return err
}
