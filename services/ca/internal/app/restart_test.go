package app

import (
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"fairlead.dev/pkg/process"
	"fairlead.dev/pkg/service"
	"fairlead.dev/pkg/testkit"
)

var randReader = rand.Reader

func wantCode(err error, want codes.Code) error {
	if got := status.Convert(err); got.Code() != want {
		return fmt.Errorf("got %s: %s; want %s", got.Code(), got.Message(), want)
	}
	return nil
}

func (h *harness) ownTLS() *tls.Certificate {
	h.t.Helper()
	m, err := h.server.ownCert.Current()
	if err != nil {
		h.t.Fatal(err)
	}
	return m.Certificate
}

func (h *harness) ownCertificate() *x509.Certificate { return h.ownTLS().Leaf }

func TestRestartKeepsTheRoot(t *testing.T) {
	out := filepath.Join(t.TempDir(), "root-cert.pem")
	h := start(t, func(o *Options) { o.RootCertOut = out })
	first := h.mustCreate(as(t.Context(), h.token("default", "reviews")), h.dial(nil), 0)
	published, err := os.ReadFile(out)
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(string(published), "BEGIN CERTIFICATE") || strings.Contains(string(published), "KEY") {
		t.Errorf("--root-cert-out wrote %q", published)
	}
	h.Stop()

	again := startWith(t, h.issuer, h.options)
	// A certificate of the time before renews with the ca after.
	renewed := again.mustCreate(t.Context(), again.dial(first.tls()), 0)
	if !renewed.root.Equal(first.root) {
		t.Error("the root is another after the restart")
	}
	if text, err := os.ReadFile(out); err != nil || string(text) != string(published) {
		t.Errorf("published root changed: %v", err)
	}
	if bundle, _ := again.server.publisher.Current(); bundle.Generation != 1 {
		t.Errorf("generation %d after a restart with the same root, want 1", bundle.Generation)
	}
}

func TestOwnCertificateServesTheIdentity(t *testing.T) {
	h := start(t, nil)
	own := h.ownCertificate()
	if uriOf(own) != "spiffe://cluster.local/ns/istio-system/sa/ca" || strings.Join(own.DNSNames, " ") != "ca.istio-system.svc" {
		t.Errorf("own certificate is for %s %v", uriOf(own), own.DNSNames)
	}
}

func TestOwnCertificateIsRenewedAtHalfLife(t *testing.T) {
	issuer := testkit.NewIssuer(t)
	clock := testkit.NewClock(time.Now())
	h := startAt(t, issuer, defaults(t, issuer), clock)
	before := h.ownCertificate()
	clock.Advance(h.options.WorkloadTTL/2 + time.Second)
	testkit.Eventually(t, testkit.Patience, func() error {
		if h.ownCertificate().SerialNumber.Cmp(before.SerialNumber) == 0 {
			return fmt.Errorf("still the certificate that ends at %s, and it is %s", before.NotAfter, clock.Now())
		}
		return nil
	})
	// What the port serves is the new one.
	raw, err := tls.Dial("tcp", h.server.Addr("grpc-address").String(), &tls.Config{
		MinVersion: tls.VersionTLS13, RootCAs: h.roots(), ServerName: "ca.istio-system.svc", Time: clock.Now,
	})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = raw.Close() }()
	if raw.ConnectionState().PeerCertificates[0].SerialNumber.Cmp(before.SerialNumber) == 0 {
		t.Error("the port serves the old certificate")
	}
}

func TestRefusesToStart(t *testing.T) {
	issuer := testkit.NewIssuer(t)
	taken := testkit.LoopbackListener(t).Addr().String()
	for name, tc := range map[string]struct {
		change func(*Options)
		code   int
		says   []string
	}{
		"everything wrong at once": {
			func(o *Options) { o.Dir, o.Issuer, o.TrustDomain, o.DNSNames = "", "", "Not A Domain", []string{"ca"} }, process.ExitUsage,
			[]string{"--ca-dir: is required", "--issuer: is required", "--trust-domain", "--dns-names"},
		},
		"lifetimes": {
			func(o *Options) { o.MaxWorkloadTTL = time.Minute }, process.ExitUsage, []string{"--max-workload-ttl: 1m0s is less than 1h0m0s"},
		},
		"shortest lifetime": {
			func(o *Options) { o.MinWorkloadTTL = 2 * time.Hour }, process.ExitUsage, []string{"--workload-ttl: 1h0m0s is less than 2h0m0s"},
		},
		"renewals":              {func(o *Options) { o.MaxRenewalAge = -1 }, process.ExitUsage, []string{"--max-renewal-age"}},
		"impersonate everybody": {func(o *Options) { o.Impersonators = []string{"a/b=*/*"} }, process.ExitUsage, []string{"--impersonators"}},
		"no workers":            {func(o *Options) { o.Workers = 0 }, process.ExitUsage, []string{"--workers"}},
		"directory for others": {
			func(o *Options) {
				if err := os.Mkdir(o.Dir, 0o755); err != nil {
					t.Fatal(err)
				}
			}, process.ExitFailure, []string{"chmod 0700"},
		},
		"port in use":     {func(o *Options) { o.GRPCAddress = taken }, process.ExitFailure, []string{"--grpc-address", "in use"}},
		"ops port in use": {func(o *Options) { o.OpsAddress = taken }, process.ExitFailure, []string{"--ops-address", "in use"}},
		"bundle cannot be written": {func(o *Options) { o.RootCertOut = filepath.Join(o.Dir, "none", "root.pem") }, process.ExitFailure,
			[]string{"--root-cert-out"}},
		"no extra roots": {func(o *Options) { o.ExtraRootsFile = filepath.Join(o.Dir, "none") }, process.ExitFailure,
			[]string{"extra roots"}},
	} {
		t.Run(name, func(t *testing.T) {
			o := defaults(t, issuer)
			tc.change(&o)
			_, err := Open(t.Context(), &o, service.Deps{Log: slog.New(slog.DiscardHandler), Registry: prometheus.NewRegistry()})
			if err == nil {
				t.Fatal("started")
			}
			if got := process.ExitCode(err); got != tc.code {
				t.Errorf("exit code %d, want %d", got, tc.code)
			}
			for _, says := range tc.says {
				if !strings.Contains(err.Error(), says) {
					t.Errorf("error %q does not say %q", err, says)
				}
			}
		})
	}
}

func TestOneCAHasADirectory(t *testing.T) {
	h := start(t, nil)
	o := h.options
	second := func() error {
		s, err := Open(t.Context(), &o, service.Deps{Log: slog.New(slog.DiscardHandler), Registry: prometheus.NewRegistry()})
		if err == nil {
			s.Close()
		}
		return err
	}
	if err := second(); err == nil || !strings.Contains(err.Error(), "--ca-dir: "+o.Dir+" is in use") {
		t.Errorf("a second ca: %v", err)
	}
	h.Stop()
	testkit.NoError(t, second())
	testkit.NoError(t, second()) // an Open that is given up leaves it
}
