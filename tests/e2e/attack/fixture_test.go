package attack

import (
	"context"
	"crypto/tls"
	"encoding/base64"
	"fmt"
	"net"
	"os"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"

	"fairlead.dev/pkg/rpc"
	"fairlead.dev/pkg/testkit"
	configv1 "fairlead.dev/proto/fairlead/config/v1"
	"fairlead.dev/tests/e2e/internal/fleet"
	"fairlead.dev/tests/internal/controlplane"
)

// Pods of testdata/mesh.yaml whose own agents do not run, so that the tests may act with their identities. The attacker
// owns batch.
const (
	batch    = "batch-0"
	payer    = "payer-0"
	rightful = "rightful-0"
	observed = "observer-0"
)

// patience is how long a rightful caller may be kept waiting before the test gives up on it.
const patience = 10 * time.Second

// fixture is a mesh with its keys, and what is known of it at rest.
type fixture struct {
	*fleet.Mesh
	limits map[string]int64
	// edgeKey and payerKey are private keys that an attacker wants: of the gateway in namespace edge, and of the
	// sidecar payer there.
	edgeKey, payerKey []byte
	web               *testkit.CA

	store    configv1.ConfigStoreServiceClient
	observer *observer
	// opened is a caller with a certificate that expires while the attacks run.
	opened *brief
	// atRest is the 99th percentile of a change's way to a proxy's acknowledgement while nothing is attacked.
	atRest time.Duration
}

// newWorld starts a mesh. Each service has the memory limit that its Deployment gives it, told to its collector in the
// same way.
func newFixture(t *testing.T) *fixture {
	t.Helper()
	f := &fixture{limits: limits(t), web: testkit.PKI(t)}
	env := map[string][]string{}
	for service := range f.limits {
		env[service] = []string{collectorLimit(t, deployment(t, service))}
	}
	f.Mesh = fleet.Start(t, binaries, fleet.Options{
		Files:  []string{"testdata/mesh.yaml"},
		Closed: []string{"node-agent." + batch, "node-agent." + payer, "node-agent." + rightful, "node-agent." + observed},
		Env:    env,
		Args:   []string{"--file-grace-period", "2s"},
	})
	secret := func(name string) []byte {
		chain, key := f.web.NewServer(name + ".example.com")
		text := base64.StdEncoding.EncodeToString
		f.WriteConfig(t, name+".yaml", fmt.Sprintf(
			"apiVersion: v1\nkind: Secret\ntype: kubernetes.io/tls\nmetadata: {name: %s-tls, namespace: edge}\ndata: {tls.crt: %s, tls.key: %s, "+
				"ca.crt: %s}\n",
			name, text(chain), text(key), text(f.web.RootPEM)))
		return key
	}
	f.edgeKey, f.payerKey = secret("edge"), secret("payer")
	secret("unused")
	f.WaitPods(t, "client-0", "server-0", "edge-gateway-0")
	f.store = configv1.NewConfigStoreServiceClient(f.admin(t))
	return f
}

// admin is a connection to config-watcher with an administrator's token.
func (f *fixture) admin(t *testing.T) *grpc.ClientConn {
	t.Helper()
	conn, err := rpc.Dial(rpc.ClientConfig{Target: f.service(t, "config-watcher").GRPCAddress, TLS: anyServer(nil),
		TokenFile: f.Path("tokens", "admin")})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() }) // the test is over
	return conn
}

func (f *fixture) service(t *testing.T, name string) *fleet.Service {
	t.Helper()
	s, err := f.State(t).Service(name)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// anyServer is TLS towards whichever server: whom it talks to is not what these tests are about.
func anyServer(own *tls.Certificate) *tls.Config {
	cfg := &tls.Config{MinVersion: tls.VersionTLS13, InsecureSkipVerify: true, NextProtos: []string{"h2"}}
	if own != nil {
		cfg.Certificates = []tls.Certificate{*own}
	}
	return cfg
}

// identity is somebody who calls the services: a workload with the certificate that the mesh's ca has given it for its
// token.
type identity struct {
	pod         *fleet.Pod
	certificate *tls.Certificate
}

// identity gets a Pod its certificate, as the Pod itself would.
func (f *fixture) identity(t *testing.T, pod string, ttl time.Duration) *identity {
	t.Helper()
	p := f.Pod(t, pod)
	cert, err := f.issue(t.Context(), f.service(t, "ca").GRPCAddress, p.Agent.TokenFile, p.IP, ttl)
	if err != nil {
		t.Fatalf("certificate of %s: %v", pod, err)
	}
	return &identity{pod: p, certificate: cert}
}

// issue asks the ca for a certificate with a token. An answer that asks to come again is followed until patience ends.
func (f *fixture) issue(ctx context.Context, ca, tokenFile, from string, ttl time.Duration) (*tls.Certificate, error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	conn, err := rpc.Dial(rpc.ClientConfig{Target: ca, TLS: anyServer(nil), TokenFile: tokenFile}, grpc.WithContextDialer(dialerFrom(from)))
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	return request(ctx, conn, ttl)
}

// request makes a key and has it signed.
func request(ctx context.Context, conn *grpc.ClientConn, ttl time.Duration) (*tls.Certificate, error) {
	r, err := controlplane.NewRequest()
	if err != nil {
		return nil, err
	}
	return r.Send(ctx, conn, ttl)
}

// dialerFrom dials from an address of this machine, by which the services tell who calls from where.
func dialerFrom(ip string) func(context.Context, string) (net.Conn, error) {
	return func(ctx context.Context, address string) (net.Conn, error) {
		return (&net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(ip)}, Timeout: patience}).DialContext(ctx, "tcp", address)
	}
}

// dial opens a connection of its own as the identity.
func (i *identity) dial(address string) (*grpc.ClientConn, error) {
	return grpc.NewClient("passthrough:///"+address, grpc.WithTransportCredentials(credentials.NewTLS(anyServer(i.certificate))),
		grpc.WithContextDialer(dialerFrom(i.pod.IP)), grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(64<<20)))
}

// removed deletes what a test has put somewhere.
func removed(t *testing.T, path string) {
	t.Helper()
	if err := os.Remove(path); err != nil {
		t.Error(err)
	}
}
