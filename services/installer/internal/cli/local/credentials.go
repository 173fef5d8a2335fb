package local

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/spf13/cobra"
	"github.com/spiffe/go-spiffe/v2/spiffeid"

	"fairlead.dev/pkg/auth"
	"fairlead.dev/pkg/fileio"
	"fairlead.dev/pkg/process"
	"fairlead.dev/pkg/svid"
	"fairlead.dev/pkg/tlsconf"
	"fairlead.dev/proto/fairlead/contract"
	"fairlead.dev/proto/fairlead/runstate"
	"fairlead.dev/services/installer/internal/cli/command"
	"fairlead.dev/services/installer/internal/cli/meshflags"
	"fairlead.dev/services/installer/internal/local/plan"
	"fairlead.dev/services/installer/internal/local/rundir"
	"fairlead.dev/services/installer/internal/local/tokens"
)

// Names of the files in a credentials directory; istioctl --cert-dir expects those of certificate, key and root.
const (
	tokenName, rootName, chainName, keyName = "istio-token", "root-cert.pem", "cert-chain.pem", "key.pem"
)

// credentialsTimeout bounds the wait for the ca's certificate.
const credentialsTimeout = 30 * time.Second

func newCredentials(flags *meshflags.Flags) *cobra.Command {
	var out string
	ttl := tokens.TTL
	cmd := &cobra.Command{
		Use:   "credentials NAMESPACE/SERVICE-ACCOUNT --out DIR",
		Short: "Write a token and a certificate of a service account of the mesh that `fairlead up` runs",
		Long: `Write what a program needs to act as a service account in the mesh that ` + "`fairlead up`" + ` runs: a token of audience istio-ca
(istio-token), a certificate with its key (cert-chain.pem, key.pem) and the mesh's root (root-cert.pem). They are for clients that
` + "`fairlead up`" + ` does not start: a stock Istio sidecar, or istioctl with --cert-dir and the account istio-system/fairlead-admin.
Whoever has the files is that account; a cluster has ` + "`kubectl create token`" + ` for this.`,
		Args: command.Args(cobra.ExactArgs(1)),
		RunE: func(cmd *cobra.Command, a []string) error {
			namespace, account, ok := strings.Cut(a[0], "/")
			if !ok || namespace == "" || account == "" {
				return process.Usagef("%q is not namespace/service-account, like apps/web", a[0])
			}
			if out == "" {
				return process.Usage(errors.New("--out is required: the directory for the files"))
			}
			if ttl < time.Minute {
				return process.Usagef("--ttl %s is less than a minute", ttl)
			}
			s, err := flags.Machine().State()
			if err != nil {
				return err
			}
			of := tokens.Subject{Namespace: namespace, Account: account, Audience: contract.TokenAudience}
			if err := writeCredentials(cmd.Context(), s, of, out, ttl); err != nil {
				return err
			}
			cmd.Printf("%s: token for %s, certificate, key and root of %s\n", out, ttl, a[0])
			return nil
		},
	}
	cmd.Flags().StringVar(&out, "out", "", "directory for the files; made if missing (required)")
	cmd.Flags().DurationVar(&ttl, "ttl", ttl, "lifetime of the token")
	return cmd
}

// writeCredentials issues a token with the mesh's own signing key, gets a certificate from the mesh's ca with it, and
// writes both with the root certificate into the directory out.
func writeCredentials(ctx context.Context, s *runstate.State, of tokens.Subject, out string, ttl time.Duration) error {
	td, err := spiffeid.TrustDomainFromString(s.TrustDomain)
	if err != nil {
		return err
	}
	id, err := auth.WorkloadID(td, of.Namespace, of.Account)
	if err != nil {
		return process.Usage(err)
	}
	key, err := os.ReadFile(rundir.NewLayout(s.RunDir, "").IssuerKey())
	if err != nil {
		return fmt.Errorf("the mesh's key for tokens: %w", err)
	}
	issuer, err := tokens.LoadIssuer(plan.Issuer, key)
	if err != nil {
		return err
	}
	token, err := issuer.Issue(of, time.Now(), ttl)
	if err != nil {
		return err
	}
	root, err := os.ReadFile(s.RootCertFile)
	if err != nil {
		return fmt.Errorf("the mesh's root: %w", err)
	}
	tokenFile := filepath.Join(out, tokenName)
	if err := errors.Join(fileio.Replace(tokenFile, []byte(token)), fileio.Write(filepath.Join(out, rootName), root, 0o644)); err != nil {
		return err
	}
	m, err := certificate(ctx, s, id, tokenFile)
	if err != nil {
		return err
	}
	return errors.Join(fileio.Write(filepath.Join(out, chainName), m.CertPEM, 0o644),
		fileio.Write(filepath.Join(out, keyName), m.KeyPEM, 0o600))
}

// certificate gets a certificate for id from the mesh's ca, with the token in tokenFile.
func certificate(ctx context.Context, s *runstate.State, id spiffeid.ID, tokenFile string) (*tlsconf.Material, error) {
	ca, err := auth.WorkloadID(id.TrustDomain(), contract.SystemNamespace, contract.CAAccount)
	if err != nil {
		return nil, err
	}
	address := ""
	for _, svc := range s.Services {
		if svc.Program == "ca" {
			address = svc.GRPCAddress
		}
	}
	var log strings.Builder
	manager, err := svid.New(svid.Config{
		CAAddress: address, CAIDs: []spiffeid.ID{ca}, TokenFile: tokenFile, RootFile: s.RootCertFile, TrustDomain: id.TrustDomain(), Identity: id,
		TTL: contract.CertificateTTL,
		Log: slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelWarn})), Registerer: prometheus.NewRegistry(),
	})
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, credentialsTimeout)
	done := make(chan error, 1)
	go func() { done <- manager.Run(ctx) }()
	err = manager.WaitReady(ctx)
	cancel()
	if stopped := <-done; err == nil {
		err = stopped
	}
	if err != nil {
		return nil, fmt.Errorf("no certificate from the ca at %s: %w; %s", address, err, log.String())
	}
	return manager.Current()
}
