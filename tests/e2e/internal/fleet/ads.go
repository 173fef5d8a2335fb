package fleet

import (
	"context"
	"testing"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	"github.com/spiffe/go-spiffe/v2/spiffeid"

	"fairlead.dev/pkg/rpc"
	"fairlead.dev/pkg/testkit"
	"fairlead.dev/pkg/testkit/adstest"
	"fairlead.dev/pkg/tlsconf"
)

// ADS connects to an xds-server with the token of a Pod whose own proxy does not run, in place of that proxy.
func (m *Mesh) ADS(t *testing.T, pod, server string) *adstest.Delta {
	t.Helper()
	p := m.Pod(t, pod)
	return m.Claiming(t, pod, server, adstest.Node(adstest.Sidecar(p.IP, p.Name, p.Namespace), nil))
}

// Claiming connects to an xds-server with the token of a Pod, as whatever node the test says.
func (m *Mesh) Claiming(t *testing.T, pod, server string, node *corev3.Node) *adstest.Delta {
	t.Helper()
	state := m.State(t)
	p, s := testkit.Must(state.Pod(pod))(t), testkit.Must(state.Service(server))(t)
	id := testkit.Must(spiffeid.FromString(s.Identity))(t)
	conn := testkit.Must(rpc.Dial(rpc.ClientConfig{
		Target: s.GRPCAddress, TLS: tlsconf.Client(tlsconf.NewFiles(tlsconf.FilesConfig{RootFile: state.RootCertFile}), id),
		TokenFile: p.Agent.TokenFile,
	}))(t)
	t.Cleanup(func() { _ = conn.Close() }) // the test is over
	// A response that does not come must end the test, not stop it.
	ctx, cancel := context.WithTimeout(t.Context(), Ready)
	t.Cleanup(cancel)
	return testkit.Must(adstest.OpenDelta(ctx, conn, node))(t)
}
