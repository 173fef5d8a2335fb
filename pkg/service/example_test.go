package service_test

import (
	"context"
	"crypto/tls"
	"fmt"
	"net/http"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"github.com/spiffe/go-spiffe/v2/spiffeid"

	"fairlead.dev/pkg/auth"
	"fairlead.dev/pkg/ops"
	"fairlead.dev/pkg/process"
	"fairlead.dev/pkg/service"
	"fairlead.dev/pkg/svid"
	"fairlead.dev/pkg/tlsconf"
)

// webhookOptions are the flags of a service with an HTTPS port of its own.
type webhookOptions struct {
	service.Options
	Address                              string
	CAAddress, CATokenFile, RootCertFile string
}

func (o *webhookOptions) AddFlags(flags *pflag.FlagSet) {
	o.Options.AddFlags(flags, service.Help{"shutdown-grace": "how long running reviews may take after SIGTERM"})
	flags.StringVar(&o.Address, "webhook-address", ":15017", "address of the HTTPS port")
	flags.StringVar(&o.CAAddress, "ca-address", "", "address of the ca (required)")
	flags.StringVar(&o.CATokenFile, "ca-token-file", "", "file with the token that proves the own identity to the ca (required)")
	flags.StringVar(&o.RootCertFile, "root-cert-file", "", "file with the trusted roots (required)")
}

// openWebhook is the one list that wires the service.
func openWebhook(ctx context.Context, o *webhookOptions, deps service.Deps) (_ *service.Process, err error) {
	var errs service.FlagErrors
	domain := o.Check(&errs)
	errs.Required("ca-address", o.CAAddress)
	errs.Required("ca-token-file", o.CATokenFile)
	errs.Required("root-cert-file", o.RootCertFile)
	if err := errs.Err(); err != nil {
		return nil, process.WithExitCode(err, process.ExitUsage)
	}
	ids := map[string]spiffeid.ID{}
	for _, account := range []string{"webhook", "ca", "admin"} {
		if ids[account], err = auth.WorkloadID(domain, "system", account); err != nil {
			return nil, err
		}
	}
	p := service.New(o.Options, deps)
	defer func() {
		if err != nil {
			p.Close()
		}
	}()
	identity, err := p.Identity(svid.Config{
		CAAddress: o.CAAddress, CAIDs: []spiffeid.ID{ids["ca"]}, TokenFile: o.CATokenFile, RootFile: o.RootCertFile, Identity: ids["webhook"],
		TTL: time.Hour,
	})
	if err != nil {
		return nil, err
	}
	lis, err := p.Listen(ctx, "webhook-address", o.Address)
	if err != nil {
		return nil, err
	}
	if err := p.ServeOps(ctx, service.Admin{ID: ids["admin"], Audience: "admin"}); err != nil {
		return nil, err
	}
	p.Ops.Ready("identity", identity.Check)
	reviews := ops.HTTP{Listener: lis, TLS: tlsconf.Server(identity, tls.NoClientCert), Handler: http.NotFoundHandler(), Log: p.Log}
	p.Task("webhook", reviews.Serve)
	return p, nil
}

// A process with an HTTPS port of its own. The whole of its main.go is service.Main(webhook()).
func Example() {
	webhook := func() *cobra.Command {
		return service.Command(&cobra.Command{Use: "webhook --ca-address HOST:PORT", Short: "Review objects"}, &webhookOptions{}, openWebhook)
	}
	fmt.Println(webhook().Name())
	// Output: webhook
}
