package proxyless

import (
	"crypto/tls"
	"encoding/json"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	"google.golang.org/protobuf/types/known/structpb"

	"fairlead.dev/pkg/testkit"
)

func TestBootstrap(t *testing.T) {
	meta, err := structpb.NewStruct(map[string]any{"GENERATOR": "grpc", "NAMESPACE": "shop"})
	if err != nil {
		t.Fatal(err)
	}
	in := BootstrapInput{
		Node:   &corev3.Node{Id: "sidecar~10.0.0.7~web-0.shop~shop.svc.cluster.local", Metadata: meta, Locality: &corev3.Locality{}},
		Socket: "/etc/istio/proxy/XDS", CertificateDir: "/certs", TTL: 24 * time.Hour,
	}
	got, err := Bootstrap(in)
	if err != nil {
		t.Fatal(err)
	}
	want := `{
  "xds_servers": [
    {
      "server_uri": "unix:///etc/istio/proxy/XDS",
      "channel_creds": [
        {
          "type": "insecure"
        }
      ],
      "server_features": [
        "xds_v3"
      ]
    }
  ],
  "node": {
    "id": "sidecar~10.0.0.7~web-0.shop~shop.svc.cluster.local",
    "metadata": {
      "GENERATOR": "grpc",
      "NAMESPACE": "shop"
    },
    "locality": {}
  },
  "certificate_providers": {
    "default": {
      "plugin_name": "file_watcher",
      "config": {
        "certificate_file": "/certs/cert-chain.pem",
        "private_key_file": "/certs/key.pem",
        "ca_certificate_file": "/certs/root-cert.pem",
        "refresh_interval": "5s"
      }
    }
  },
  "server_listener_resource_name_template": "xds.istio.io/grpc/lds/inbound/%s"
}
`
	if string(got) != want {
		t.Errorf("got %s", got)
	}
}

func TestRefreshIntervalFollowsTheLifetime(t *testing.T) {
	for ttl, want := range map[time.Duration]string{90 * 24 * time.Hour: "5s", 24 * time.Hour: "5s", 5 * time.Minute: "3s",
		time.Minute: "1s"} {
		raw, err := Bootstrap(BootstrapInput{Node: &corev3.Node{Id: "x"}, TTL: ttl})
		if err != nil {
			t.Fatal(err)
		}
		var got bootstrap
		if err := json.Unmarshal(raw, &got); err != nil {
			t.Fatal(err)
		}
		if refresh := got.CertificateProviders[provider].Config.Refresh; refresh != want {
			t.Errorf("%s: %s, want %s", ttl, refresh, want)
		}
	}
}

// The bootstrap appears when all files that it names exist. The modes admit this user only.
func TestFilesFollowTheCertificate(t *testing.T) {
	ca := testkit.PKI(t)
	source := ca.RootsOnly()
	dir := t.TempDir()
	certs, boot := filepath.Join(dir, "certs"), filepath.Join(dir, "proxy", "grpc-bootstrap.json")
	f := NewFiles(Config{Source: source, CertificateDir: certs, BootstrapPath: boot, Bootstrap: []byte("{}"), Log: testkit.Logger(t)})
	testkit.Background(t, f.Run)
	ctx := t.Context()
	if err := f.Check(ctx); err == nil || !strings.Contains(err.Error(), "no certificate yet") {
		t.Errorf("without a certificate: %v", err)
	}
	var last *tls.Certificate
	for range 2 {
		svid, err := ca.NewSVID("shop", "web").Current()
		if err != nil {
			t.Fatal(err)
		}
		source.Set(svid)
		testkit.Eventually(t, testkit.Patience, func() error {
			if err := f.Check(ctx); err != nil {
				return err
			}
			pair, err := tls.LoadX509KeyPair(filepath.Join(certs, certificateFile), filepath.Join(certs, keyFile))
			if err == nil && !pair.Leaf.Equal(svid.Certificate.Leaf) {
				err = fmt.Errorf("the files have serial %x, not %x", pair.Leaf.SerialNumber, svid.Certificate.Leaf.SerialNumber)
			}
			last = &pair
			return err
		})
	}
	if len(last.Certificate) == 0 {
		t.Error("no chain")
	}
	for path, want := range map[string]fs.FileMode{
		certs: 0o700, filepath.Dir(boot): 0o700, boot: 0o600, filepath.Join(certs, keyFile): 0o600, filepath.Join(certs, rootFile): 0o600,
	} {
		if info, err := os.Stat(path); err != nil || info.Mode().Perm() != want {
			t.Errorf("%s: %v %v, want mode %o", path, info, err, want)
		}
	}
	if left, err := filepath.Glob(filepath.Join(certs, ".write-*")); err != nil || len(left) > 0 {
		t.Errorf("left behind: %q, %v", left, err)
	}
	f.Drain()
	if err := f.Check(ctx); err == nil || !strings.Contains(err.Error(), "draining") {
		t.Errorf("while draining: %v", err)
	}
}

func TestFilesAreWrittenAgainAfterAFailure(t *testing.T) {
	blocked := filepath.Join(t.TempDir(), "blocked")
	testkit.WriteFile(t, blocked, nil)
	clock := testkit.NewClock(time.Now())
	f := NewFiles(Config{
		Source: testkit.PKI(t).NewSVID("shop", "web"), CertificateDir: filepath.Join(blocked, "certs"), Log: testkit.Logger(t), Clock: clock,
	})
	testkit.Background(t, f.Run)
	ctx := t.Context()
	clock.WaitFor(t, 1)
	if err := f.Check(ctx); err == nil || !strings.Contains(err.Error(), "not written yet") {
		t.Errorf("while it fails: %v", err)
	}
	if err := os.Remove(blocked); err != nil {
		t.Fatal(err)
	}
	clock.Advance(retryPause)
	testkit.Eventually(t, testkit.Patience, func() error { return f.Check(ctx) })
}
