package app

import (
	"crypto/tls"
	"strings"
	"testing"

	"github.com/spf13/pflag"
)

// parse reads flags beside those that are required.
func parse(t *testing.T, args ...string) (*config, error) {
	t.Helper()
	var o Options
	flags := pflag.NewFlagSet("xds-server", pflag.ContinueOnError)
	o.AddFlags(flags)
	required := []string{"--config-watcher-address=c:1", "--ca-address=ca:1", "--root-cert-file=r", "--state-dir=s"}
	if err := flags.Parse(append(required, args...)); err != nil {
		t.Fatal(err)
	}
	return o.check()
}

func TestDefaultsHold(t *testing.T) {
	c, err := parse(t)
	if err != nil {
		t.Fatal(err)
	}
	if c.Instance == "" || c.own.String() != "spiffe://cluster.local/ns/istio-system/sa/xds-server" || c.PlaintextAddress != "" {
		t.Errorf("got %+v", c)
	}
	if len(c.debuggers) != 1 || c.debuggers[0] != c.admin || c.minTLS != tls.VersionTLS13 || !c.ForwardCertificateRequests {
		t.Errorf("got %+v", c)
	}
	if c, err = parse(t, "--debug-identities=istio-system/default", "--tls-min-version=1.2"); err != nil || len(c.debuggers) != 2 ||
		c.debuggers[1].String() != "spiffe://cluster.local/ns/istio-system/sa/default" || c.minTLS != tls.VersionTLS12 {
		t.Errorf("got %+v, %v", c, err)
	}
}

// TestServicesMayBeInOtherNamespaces holds that the ca and config-watcher have the identities that flags say.
func TestServicesMayBeInOtherNamespaces(t *testing.T) {
	c, err := parse(t, "--identity=edge/xds-server", "--ca-identity=trust/ca", "--config-watcher-identity=edge/xds-server")
	if err != nil || c.ca.Path() != "/ns/trust/sa/ca" || c.configWatcher != c.own || c.admin.Path() != "/ns/edge/sa/fairlead-admin" {
		t.Errorf("got %+v, %v", c, err)
	}
	if c, err = parse(t, "--identity=edge/xds-server"); err != nil || c.ca.Path() != "/ns/edge/sa/ca" ||
		c.configWatcher.Path() != "/ns/edge/sa/config-watcher" {
		t.Errorf("got %+v, %v", c, err)
	}
}

// TestOwnServicesAreReserved holds which identities no token of a remote cluster proves.
func TestOwnServicesAreReserved(t *testing.T) {
	c, err := parse(t, "--identity=edge/xds-server", "--ca-identity=trust/ca", "--config-watcher-identity=watch/watcher",
		"--debug-identities=ops/kiali")
	if err != nil {
		t.Fatal(err)
	}
	for who, want := range map[string]bool{
		"edge/xds-server": true, "edge/other": true, "trust/ca": true, "watch/default": true, "ops/kiali": true, "ops/other": false,
		"edge-2/xds-server": false, "shop/web": false,
	} {
		namespace, account, _ := strings.Cut(who, "/")
		if got := c.reserved(namespace, account); got != want {
			t.Errorf("%s is reserved: %v, want %v", who, got, want)
		}
	}
}

// TestRefusals: each names the flag, and all are reported at once.
func TestRefusals(t *testing.T) {
	for _, flag := range []string{
		"--secure-address=", "--peers=nowhere", "--max-connection-age=0", "--shutdown-grace=-1s", "--trust-domain=No Domain", "--identity=one",
		"--jwks-file=k", "--max-on-demand-hosts=0", "--max-unsent-mib=-1", "--max-unsent-mib=99999999",
		"--ca-identity=one", "--config-watcher-identity=a/No Name", "--tls-min-version=1.1", "--debug-identities=one",
		"--debug-identities=istio-system/No Name", "--remote-clusters-file=c",
	} {
		name, _, _ := strings.Cut(flag, "=")
		if name == "--jwks-file" {
			name = "--issuer"
		}
		if _, err := parse(t, flag); err == nil || !strings.Contains(err.Error(), name+": ") {
			t.Errorf("%s: %v", flag, err)
		}
	}
	_, err := parse(t, "--secure-address=", "--ops-address=")
	if err == nil || strings.Count(err.Error(), "is required") != 2 {
		t.Errorf("got %v, want both", err)
	}
}
