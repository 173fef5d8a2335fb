package app

import (
	"context"
	"fmt"
	"io/fs"
	"path/filepath"
	"strings"
	"testing"

	discovery "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"fairlead.dev/pkg/rpc"
	"fairlead.dev/pkg/testkit"
	"fairlead.dev/pkg/testkit/adstest"
	"fairlead.dev/pkg/tlsconf"
	configv1 "fairlead.dev/proto/fairlead/config/v1"
	"fairlead.dev/proto/fairlead/contract"
)

const serviceEntryType = "networking.istio.io/v1/ServiceEntry"

// mcpConn connects to the MCP server with an identity of istio-system; empty means without a certificate.
func (r *running) mcpConn(account string) *grpc.ClientConn {
	r.t.Helper()
	var src tlsconf.Source = r.ca.RootsOnly()
	if account != "" {
		src = r.ca.NewSVID(contract.SystemNamespace, account)
	}
	conn, err := rpc.Dial(rpc.ClientConfig{
		Target: r.Address("mcp-address"), TLS: tlsconf.Client(src, r.ca.ID(contract.SystemNamespace, contract.ConfigWatcherAccount)),
	})
	if err != nil {
		r.t.Fatal(err)
	}
	r.t.Cleanup(func() { _ = conn.Close() })
	return conn
}

// mcpList asks for all ServiceEntries.
func mcpList(ctx context.Context, conn *grpc.ClientConn) (int, error) {
	s, err := adstest.OpenSotw(ctx, conn, adstest.Node("x", nil))
	if err != nil {
		return 0, err
	}
	if err := s.Send(&discovery.DiscoveryRequest{TypeUrl: serviceEntryType}); err != nil {
		return 0, s.Drain()
	}
	m, err := s.Recv()
	return len(m.GetResources()), err
}

// TestWhoMayReadByMCP: identities that are named, and addresses of the flag for who shows no certificate. Whoever shows
// one that is not named is refused wherever it calls from.
func TestWhoMayReadByMCP(t *testing.T) {
	for name, c := range map[string]struct {
		clients, allow []string
		account        string
		want           codes.Code
	}{
		"a named identity":                       {[]string{"istio-system/istiod"}, nil, "istiod", codes.OK},
		"another identity":                       {[]string{"istio-system/istiod"}, nil, "other", codes.PermissionDenied},
		"another identity, of a named address":   {[]string{"istio-system/istiod"}, []string{"127.0.0.1"}, "other", codes.PermissionDenied},
		"no certificate":                         {[]string{"istio-system/istiod"}, nil, "", codes.Unauthenticated},
		"no certificate, from a named address":   {nil, []string{"127.0.0.0/8"}, "", codes.OK},
		"no certificate, from another address":   {nil, []string{"10.0.0.0/8"}, "", codes.Unauthenticated},
		"the administrator, who was not named":   {[]string{"istio-system/istiod"}, nil, contract.AdminAccount, codes.PermissionDenied},
		"an xds-server, which has another right": {[]string{"istio-system/istiod"}, nil, contract.XDSServerAccount, codes.PermissionDenied},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t)
			o := f.options()
			o.MCPAddress, o.MCPClients, o.MCPAllow = "127.0.0.1:0", c.clients, c.allow
			r := f.start(o)
			r.WaitReady()
			ctx, cancel := context.WithTimeout(context.Background(), patience)
			defer cancel()
			if _, err := mcpList(ctx, r.mcpConn(c.account)); status.Code(err) != c.want {
				t.Errorf("got %v, want %s", err, c.want)
			}
		})
	}
}

// TestStreamsOfOneIdentity: one has a number of them, which another's do not count for; and all end when config-watcher
// stops, with the status that makes clients go elsewhere.
func TestStreamsOfOneIdentity(t *testing.T) {
	f := newFixture(t)
	o := f.options()
	o.MCPAddress, o.MCPClients = "127.0.0.1:0", []string{"istio-system/one", "istio-system/other"}
	r := f.start(o)
	r.WaitReady()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	one, other := r.mcpConn("one"), r.mcpConn("other")
	list := func(conn *grpc.ClientConn) (*adstest.Sotw, error) {
		s, err := adstest.OpenSotw(ctx, conn, adstest.Node("x", nil))
		if err != nil {
			return nil, err
		}
		if err := s.Send(&discovery.DiscoveryRequest{TypeUrl: serviceEntryType}); err != nil {
			return nil, s.Drain()
		}
		_, err = s.Recv()
		return s, err
	}
	for range maxMCPCalls {
		if _, err := list(one); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := list(one); status.Code(err) != codes.ResourceExhausted {
		t.Errorf("one more: %v", err)
	}
	last, err := list(other)
	testkit.NoError(t, err)
	stopped := make(chan struct{})
	go func() {
		r.Stop()
		close(stopped)
	}()
	if err := last.Drain(); status.Code(err) != codes.Unavailable {
		t.Errorf("at the end: %v", err)
	}
	<-stopped
}

// TestMCPFlags: what cannot work is refused at the start, by its flag.
func TestMCPFlags(t *testing.T) {
	for want, change := range map[string]func(*Options){
		"--mcp-kinds":         func(o *Options) { o.MCPKinds = []string{"ServiceEntry"} },
		"--mcp-namespaces":    func(o *Options) { o.MCPNamespaces = []string{"a"} },
		"--mcp-address":       func(o *Options) { o.MCPAddress = ":1" },
		`"Secret" is no kind`: func(o *Options) { o.MCPAddress, o.MCPAllow, o.MCPKinds = ":1", []string{"::1"}, []string{"Secret"} },
		`did you mean`: func(o *Options) {
			o.MCPAddress, o.MCPAllow, o.MCPKinds = ":1", []string{"::1"}, []string{"ServiceEntri"}
		},
		"--config-source-namespaces": func(o *Options) { o.ConfigSourceNamespaces = []string{"istiod:15012/shop", "istiod/shop"} },
		"--mcp-clients":              func(o *Options) { o.MCPAddress, o.MCPClients = ":1", []string{"istiod"} },
		"--mcp-allow-addresses":      func(o *Options) { o.MCPAddress, o.MCPAllow = ":1", []string{"localhost"} },
	} {
		o := newFixture(t).options()
		change(&o)
		if _, err := o.check(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want %s", err, want)
		}
	}
}

const entryYAML = `apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: %s, namespace: apps}
spec: {hosts: [%[1]s.example.com], resolution: DNS, ports: [{number: 80, name: http, protocol: HTTP}]}
`

// inForce are the ServiceEntries that count, with their sources.
func (r *running) inForce(want string) {
	r.t.Helper()
	testkit.Eventually(r.t, patience, func() error {
		list, err := r.store().List(r.t.Context(), &configv1.ListRequest{Kind: "ServiceEntry", InForce: true})
		if err != nil {
			return err
		}
		var got []string
		for _, o := range list.Objects {
			got = append(got, o.Key.Name+":"+o.Source)
		}
		if text := strings.Join(got, " "); text != want {
			return fmt.Errorf("in force is %q, want %q", text, want)
		}
		return nil
	})
}

// TestOneConfigWatcherReadsAnother: by configSources, with the mesh's certificates, and a directory beside it; live
// changes, the server away, and a restart without it.
func TestOneConfigWatcherReadsAnother(t *testing.T) {
	server := newFixture(t)
	o := server.options()
	o.MCPAddress, o.MCPClients = "127.0.0.1:0", []string{"istio-system/config-watcher"}
	first := server.start(o)
	first.apply(fmt.Sprintf(entryYAML, "one"), fmt.Sprintf(entryYAML, "two"))

	dir := t.TempDir()
	const unread = "---\napiVersion: v1\nkind: Namespace\nmetadata: {name: left-out}\n"
	testkit.WriteFile(t, filepath.Join(dir, "a.yaml"), fmt.Appendf(nil, entryYAML+unread, "of-file"))
	client := &fixture{t: t, ca: server.ca, issuer: server.issuer, dir: t.TempDir()}
	o = client.options()
	o.StateDir = filepath.Join(client.dir, "state")
	o.MeshConfigFile = filepath.Join(client.dir, "mesh.yaml")
	mesh := func(sources string) {
		testkit.WriteFile(t, o.MeshConfigFile, []byte("configSources: ["+sources+"]\n"))
	}
	address := first.Address("mcp-address")
	xds := fmt.Sprintf(`{address: "xds://%s", tlsSettings: {mode: ISTIO_MUTUAL}}`, address)
	mesh(xds + `, {address: "fs://` + dir + `"}`)
	second := client.start(o)
	second.WaitReady()
	directory := "fs/" + strings.ReplaceAll(strings.Trim(dir, "/"), "/", "_")
	from := "mcp/" + address
	second.inForce("of-file:" + directory + " one:" + from + " two:" + from)
	// What the configuration API has comes before, whatever its age; what is changed at the server counts at once.
	second.apply(fmt.Sprintf(entryYAML, "two"))
	first.apply(fmt.Sprintf(entryYAML, "three"))
	second.inForce("of-file:" + directory + " one:" + from + " three:" + from + " two:memory")
	mesh(xds)
	second.inForce("one:" + from + " three:" + from + " two:memory")
	state := func(want string) error {
		body := second.body(t, "/readyz/sources", "")
		if away := strings.Contains(body, `"degraded": "cannot be read"`); away != (want == "away") || !strings.Contains(body, from) {
			return fmt.Errorf("not %s: %s", want, body)
		}
		return nil
	}
	testkit.Eventually(t, patience, func() error { return state("synced") })
	first.Stop()
	testkit.Eventually(t, patience, func() error { return state("away") })
	second.inForce("one:" + from + " three:" + from + " two:memory")
	second.Stop()
	// The server is away at the start: its last good state is served.
	second = client.start(o)
	second.WaitReady()
	second.inForce("one:" + from + " three:" + from + " two:memory")
	mesh("")
	second.inForce("two:memory")
	// What is not declared any more is not kept for the next start.
	second.Stop()
	left := 0
	testkit.NoError(t, filepath.WalkDir(filepath.Join(o.StateDir, "sources", "mcp"), func(_ string, e fs.DirEntry, err error) error {
		if err == nil && !e.IsDir() {
			left++
		}
		return err
	}))
	if left > 0 {
		t.Errorf("%d files of the last good state are left", left)
	}
}

// TestSeveralConfigSources: of one object the first of the list counts, whatever its age; an address that leads nowhere
// keeps none of the others from being read; a list that is not valid changes nothing; and a restart while one is away
// serves its last good state beside the others.
func TestSeveralConfigSources(t *testing.T) {
	first := newFixture(t)
	start := func(f *fixture) *running {
		o := f.options()
		o.MCPAddress, o.MCPClients = "127.0.0.1:0", []string{"istio-system/config-watcher"}
		return f.start(o)
	}
	a := start(first)
	a.apply(fmt.Sprintf(entryYAML, "both"), fmt.Sprintf(entryYAML, "of-a"))
	b := start(&fixture{t: t, ca: first.ca, issuer: first.issuer, dir: t.TempDir()})
	b.apply(fmt.Sprintf(entryYAML, "both"), fmt.Sprintf(entryYAML, "of-b"))
	client := &fixture{t: t, ca: first.ca, issuer: first.issuer, dir: t.TempDir()}
	o := client.options()
	o.StateDir = filepath.Join(client.dir, "state")
	o.MeshConfigFile = filepath.Join(client.dir, "mesh.yaml")
	mesh := func(addresses ...string) {
		text := "configSources:\n"
		for _, address := range addresses {
			text += fmt.Sprintf("- {address: %q, tlsSettings: {mode: ISTIO_MUTUAL}}\n", address)
		}
		testkit.WriteFile(t, o.MeshConfigFile, []byte(text))
	}
	atA, atB := a.Address("mcp-address"), b.Address("mcp-address")
	mesh("xds://"+atA, "xds://"+atB)
	c := client.start(o)
	c.WaitReady()
	of := func(both string) string {
		return "both:mcp/" + both + " of-a:mcp/" + atA + " of-b:mcp/" + atB
	}
	c.inForce(of(atA))
	mesh("xds://"+atB, "xds://"+atA, "xds://no-such-host.invalid:15010")
	c.inForce(of(atB))
	testkit.Eventually(t, patience, func() error {
		if body := c.body(t, "/readyz/sources", ""); !strings.Contains(body, "no-such-host.invalid") {
			return fmt.Errorf("the state does not name it: %s", body)
		}
		return nil
	})
	b.apply(fmt.Sprintf(entryYAML, "of-b"), fmt.Sprintf(entryYAML, "more"))
	c.inForce("both:mcp/" + atB + " more:mcp/" + atB + " of-a:mcp/" + atA + " of-b:mcp/" + atB)
	_, err := b.store().Delete(t.Context(), &configv1.DeleteRequest{Key: &configv1.ObjectKey{Kind: "ServiceEntry", Namespace: "apps", Name: "more"}})
	testkit.NoError(t, err)
	c.inForce(of(atB))
	for _, bad := range [][]string{{"xds://" + atA, "xds://" + atA}, {"xds://" + atA, "mcp://" + atB}} {
		for text, refused := range map[string]bool{strings.Join(bad, " "): true, "xds://" + atB + " xds://" + atA: false} {
			mesh(strings.Fields(text)...)
			testkit.Eventually(t, patience, func() error {
				if body := c.body(t, "/readyz/sources", ""); strings.Contains(body, `"refused": 1`) != refused {
					return fmt.Errorf("refused, want %t: %s", refused, body)
				}
				return nil
			})
			c.inForce(of(atB))
		}
	}
	mesh("xds://"+atB, "xds://"+atA)
	c.inForce(of(atB))
	c.Stop()
	b.Stop()
	c = client.start(o)
	c.WaitReady()
	c.inForce(of(atB))
}
