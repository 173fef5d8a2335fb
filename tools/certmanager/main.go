// Command certmanager runs those of cert-manager's controllers that CertificateRequests and CertificateSigningRequests
// of CA issuers need: issuers, signing, and, with -approve, the approver that approves every CertificateRequest.
// cert-manager's own program is in a module of its own, which no module proxy serves; its controllers are in this one.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"sync"
	"syscall"
	"time"

	"github.com/cert-manager/cert-manager/pkg/controller"
	"github.com/cert-manager/cert-manager/pkg/controller/certificaterequests/approver"
	crca "github.com/cert-manager/cert-manager/pkg/controller/certificaterequests/ca"
	csrca "github.com/cert-manager/cert-manager/pkg/controller/certificatesigningrequests/ca"
	"github.com/cert-manager/cert-manager/pkg/controller/clusterissuers"
	"github.com/cert-manager/cert-manager/pkg/controller/issuers"

	// Issuers register themselves.
	_ "github.com/cert-manager/cert-manager/pkg/issuer/ca"
)

// workers of each controller, as cert-manager's own program has.
const workers = 5

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx); err != nil {
		fmt.Fprintf(os.Stderr, "certmanager: %v\n", err)
		os.Exit(1)
	}
}

func run(ctx context.Context) error {
	kubeconfig := flag.String("kubeconfig", "", "file of the cluster and its user (required)")
	approve := flag.Bool("approve", false, "approve every CertificateRequest")
	flag.Parse()
	factory, err := controller.NewContextFactory(ctx, controller.ContextOptions{
		Kubeconfig: *kubeconfig, KubernetesAPIQPS: 20, KubernetesAPIBurst: 50,
		IssuerOptions:      controller.IssuerOptions{ClusterResourceNamespace: "cert-manager"},
		CertificateOptions: controller.CertificateOptions{CertificateRequestMinimumBackoffDuration: time.Hour},
	})
	if err != nil {
		return err
	}
	shared, err := factory.Build()
	if err != nil {
		return err
	}
	names := []string{issuers.ControllerName, clusterissuers.ControllerName, crca.CRControllerName, csrca.CSRControllerName}
	if *approve {
		names = append(names, approver.ControllerName)
	}
	var running sync.WaitGroup
	for _, name := range names {
		c, err := controller.Known()[name](factory)
		if err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		running.Go(func() {
			if err := c.Run(workers, ctx); err != nil {
				fmt.Fprintf(os.Stderr, "certmanager: %s: %v\n", name, err)
			}
		})
	}
	shared.SharedInformerFactory.Start(ctx.Done())
	shared.KubeSharedInformerFactory.Start(ctx.Done())
	running.Wait()
	return nil
}
