package consul

import (
	"net/netip"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"fairlead.dev/pkg/testkit"
)

const secretText = "very-secret"

// judged parses the text of a Secret called east, and what else it has.
func judged(t *testing.T, text string, entries map[string]string, allow ...string) (*declaration, string) {
	t.Helper()
	w := written{name: "east", place: "Secret istio-system/east", created: time.Unix(7, 0), text: []byte(text), entries: map[string][]byte{}}
	for k, v := range entries {
		w.entries[k] = []byte(v)
	}
	in := bounds{domain: "cluster.local", system: "istio-system"}
	for _, a := range allow {
		in.addresses.Allow = append(in.addresses.Allow, netip.MustParsePrefix(a))
	}
	d, found := parse(w, in)
	for _, p := range found {
		if p.Remedy == "" || p.Object != "Secret istio-system/east" {
			t.Errorf("problem %v has no remedy or object", p)
		}
	}
	if strings.Contains(found.Error(), secretText) {
		t.Errorf("%v tells the credential", found)
	}
	return d, found.Error()
}

// remote is a declaration of an address elsewhere, with lines more.
func remote(more ...string) string {
	return strings.Replace(declare(more...), "http://127.0.0.1:8500", "https://203.0.113.7:8501", 1)
}

func TestWhatADeclarationMayNotSay(t *testing.T) {
	rule := func(text string) string { return remote("rules: [{" + text + "}]") }
	for name, tc := range map[string]struct {
		text    string
		entries map[string]string
		want    []string
	}{
		"nothing":             {"", nil, []string{"data[registry.yaml]", "is missing"}},
		"no YAML":             {"{token: " + secretText, nil, []string{"is no declaration"}},
		"an unknown field":    {remote("tokn: x"), nil, []string{`unknown field "tokn"`}},
		"a field twice":       {remote("domain: a", "domain: b"), nil, []string{"already set"}},
		"a wrong type":        {remote("qualified: " + "maybe"), nil, []string{"qualified"}},
		"too large":           {remote("# " + strings.Repeat("x", maxDeclaration)), nil, []string{"at most"}},
		"no address":          {strings.Replace(declare(), "http://127.0.0.1:8500", "consul", 1), nil, []string{"address: ", "is no address"}},
		"another scheme":      {strings.Replace(declare(), "http:", "ftp:", 1), nil, []string{"address: "}},
		"a path":              {strings.Replace(remote(), ":8501", ":8501/ui", 1), nil, []string{"more than a scheme"}},
		"a user":              {strings.Replace(remote(), "//", "//u:"+secretText+"@", 1), nil, []string{"more than a scheme"}},
		"a port":              {strings.Replace(remote(), ":8501", ":85010", 1), nil, []string{`"85010" is no port`}},
		"this machine":        {declare(), nil, []string{"address: ", "loopback", "--registry-allow-addresses"}},
		"this machine's name": {strings.Replace(declare(), "127.0.0.1", "localhost", 1), nil, []string{"loopback"}},
		"metadata":            {strings.Replace(declare(), "127.0.0.1", "169.254.169.254", 1), nil, []string{"metadata"}},
		"a token in the clear": {strings.Replace(remote("token: "+secretText), "https", "http", 1), nil,
			[]string{"address: ", "in the clear", "https://"}},
		"a CA without TLS": {strings.Replace(remote("ca: x"), "https", "http", 1), nil, []string{"have no effect"}},
		"no CA":            {remote("ca: " + secretText), nil, []string{"ca: has no certificate"}},
		"no certificate":   {remote("certificate: "+secretText, "key: "+secretText), nil, []string{"certificate: is not a certificate"}},
		"a token of two":   {remote(), map[string]string{"token": secretText + " x"}, []string{"token: has characters"}},
		"a token twice":    {remote("token: " + secretText), map[string]string{"token": secretText}, []string{"token: is given beside data[token]"}},
		"a file":           {remote("tokenFile: /etc/passwd"), nil, []string{"tokenFile: ", "reads none for a Secret", "data[token]"}},
		"an age":           {remote(`created: "2030-01-01T00:00:00Z"`), nil, []string{"created: ", "own age"}},
		"a datacenter":     {strings.Replace(remote(), "dc1", "d_c", 1), nil, []string{"datacenter: "}},
		"a domain":         {remote("domain: a_b"), nil, []string{"domain: "}},
		"the mesh's":       {remote("domain: cluster.local"), nil, []string{"the mesh's own"}},
		"above the mesh's": {remote("domain: local"), nil, []string{"the mesh's own"}},
		"addresses":        {remote("addresses: all"), nil, []string{`"all" is not possible`}},
		"no rules":         {remote("rules: []"), nil, []string{"rules: is missing"}},
		"no services":      {rule("namespace: a"), nil, []string{"rules[0].services: is missing"}},
		"a pattern":        {rule("services: ['['], namespace: a"), nil, []string{"rules[0].services[0]"}},
		"no namespace":     {rule("services: [a]"), nil, []string{"rules[0].namespace"}},
		"a rule's port":    {rule("services: [a], namespace: a, port: 70000"), nil, []string{"70000 is not a port"}},
		"named ports":      {rule("services: [a], namespace: a, ports: {'a b': 0}"), nil, []string{"rules[0].ports"}},
		"a protocol":       {rule("services: [a], namespace: a, protocol: udp"), nil, []string{`"udp" is not possible`}},
		"an account":       {rule("services: [a], namespace: a, account: 'a/b'"), nil, []string{"rules[0].account"}},
		"the control plane": {rule("services: [a], namespace: istio-system, account: xds-server"), nil,
			[]string{"rules[0].account", "control plane"}},
		"exportTo":      {rule("services: [a], namespace: a, exportTo: ['a b']"), nil, []string{"rules[0].exportTo[0]"}},
		"another host":  {rule("services: [a], namespace: a, joins: www.example.com, share: 1"), nil, []string{"rules[0].joins", "NAME.a.svc.cluster.local"}},
		"another's":     {rule("services: [a], namespace: a, joins: w.b.svc.cluster.local, share: 1"), nil, []string{"rules[0].joins"}},
		"no share":      {rule("services: [a], namespace: a, joins: w.a.svc.cluster.local"), nil, []string{"rules[0].share: is missing"}},
		"a large share": {rule("services: [a], namespace: a, joins: w.a.svc.cluster.local, share: 101"), nil, []string{"101 is more than 100"}},
		"a share alone": {rule("services: [a], namespace: a, share: 1"), nil, []string{"no effect without joins"}},
		"several join":  {rule("services: ['a*'], namespace: a, joins: w.a.svc.cluster.local, share: 1"), nil, []string{"rules[0].services"}},
		"two join": {remote("rules: [{services: [a], namespace: a, joins: w.a.svc.cluster.local, share: 1}, " +
			"{services: [b], namespace: a, joins: W.a.svc.cluster.local., share: 1}]"), nil,
			[]string{"rules[1].joins: rules[0] joins the same host"}},
	} {
		t.Run(name, func(t *testing.T) {
			d, got := judged(t, tc.text, tc.entries)
			if d != nil {
				t.Fatalf("is accepted: %+v", d)
			}
			for _, part := range tc.want {
				if !strings.Contains(got, part) {
					t.Errorf("%q lacks %q", got, part)
				}
			}
		})
	}
}

func TestWhatADeclarationSays(t *testing.T) {
	ca := testkit.PKI(t)
	chain, key := ca.NewServer("client.example.com")
	d, got := judged(t, remote("domain: Consul.Example.", "qualified: true", "addresses: wan", "network: n1", "serverName: server.dc1.consul",
		"rules: [{services: [web], namespace: shop, port: 80, ports: {grpc: 90}, protocol: grpc-web, account: web, exportTo: ['.'], "+
			"joins: Web.shop.svc.cluster.local., share: 0}]"),
		map[string]string{"token": secretText + "\n", "ca.crt": string(ca.RootPEM), "tls.crt": string(chain), "tls.key": string(key)})
	if d == nil {
		t.Fatal(got)
	}
	if d.token != secretText || d.address != "https://203.0.113.7:8501" || d.tls.RootCAs == nil || len(d.tls.Certificates) != 1 ||
		d.tls.ServerName != "server.dc1.consul" || d.tls.InsecureSkipVerify {
		t.Errorf("connection %s, %+v", d.address, d.tls)
	}
	if d.Domain != "consul.example" || !d.Qualified || !d.WAN || d.Network != "n1" || d.Name != "east" || !d.Created.Equal(time.Unix(7, 0)) {
		t.Errorf("registry %+v", d.Registry)
	}
	if r := d.Rules[0]; r.Port != 80 || r.Ports["grpc"] != 90 || r.Protocol != "GRPC-WEB" || r.Account != "web" || r.ExportTo[0] != "." ||
		r.Joins != "web.shop.svc.cluster.local" || r.Share != 0 {
		t.Errorf("rule %+v", r)
	}
	if d, got := judged(t, remote(), nil); d == nil || d.Domain != "consul" || d.tls.RootCAs != nil {
		t.Errorf("defaults: %+v, %s", d, got)
	}
	if d, got := judged(t, declare("token: "+secretText), nil, "127.0.0.0/8"); d == nil || d.tls != nil {
		t.Errorf("a token in the clear on the own machine: %s", got)
	}
}

// A file names files beside itself, and what they have counts as soon as they change.
func TestAFileNamesFiles(t *testing.T) {
	dir := t.TempDir()
	testkit.WriteFile(t, filepath.Join(dir, "token"), []byte(secretText+"\n"))
	file := filepath.Join(dir, "west.yaml")
	testkit.WriteFile(t, file, []byte(remote("tokenFile: token", `created: "2030-01-01T00:00:00Z"`)))
	in := bounds{domain: "cluster.local", system: "istio-system"}
	before, found := parse(fromFile(file), in)
	if before == nil || before.Name != "west" || before.token != secretText || before.Created.Year() != 2030 {
		t.Fatalf("declaration %+v, problems %v", before, found)
	}
	testkit.WriteFile(t, filepath.Join(dir, "token"), []byte("another"))
	after, _ := parse(fromFile(file), in)
	if before.hash == after.hash || after.token != "another" {
		t.Error("a new token is no change")
	}
	again, _ := parse(fromFile(file), in)
	if again.hash != after.hash {
		t.Error("the same declaration is a change")
	}
	for name, text := range map[string]string{"tokenFile: ": remote("tokenFile: nowhere"),
		"tokenFile: is given beside": remote("tokenFile: token", "token: x")} {
		testkit.WriteFile(t, file, []byte(text))
		if _, found := parse(fromFile(file), in); !strings.Contains(found.Error(), name) ||
			!strings.Contains(found.Error(), file) {
			t.Errorf("problems %v lack %q", found, name)
		}
	}
	_, found = parse(fromFile(filepath.Join(dir, "no_name.yaml")), in)
	if len(found) != 2 {
		t.Errorf("a file that is not there, with no name: %v", found)
	}
}
