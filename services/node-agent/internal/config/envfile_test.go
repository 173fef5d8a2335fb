package config

import (
	"errors"
	"io/fs"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	meshv1alpha1 "istio.io/api/mesh/v1alpha1"

	"fairlead.dev/services/node-agent/internal/redirect"
)

const envFile = "/var/lib/istio/envoy/cluster.env"

// clusterEnv is as fairlead vm bootstrap writes it.
const clusterEnv = `ISTIO_INBOUND_PORTS='8080,9090'
ISTIO_LOCAL_EXCLUDE_PORTS='22,15090,15021,15020'
ISTIO_METAJSON_LABELS='{"app":"machine","it":"it'"'"'s"}'
ISTIO_META_AUTO_REGISTER_GROUP='machines'
ISTIO_META_DNS_CAPTURE='true'
ISTIO_NAMESPACE='shop'
ISTIO_SERVICE='machines.shop'
ISTIO_SERVICE_CIDR='10.0.0.0/8'
ISTIO_SVC_IP='192.0.2.7'
SERVICE_ACCOUNT='vm'
`

// machine is a host outside of Kubernetes with a file of variables.
func machine(text string, env ...string) Host {
	h := host(map[string]string{envFile: text, "/etc/resolv.conf": "nameserver 192.0.2.53\n"}, env...)
	h.Hostname = func() (string, error) { return "db-1.example.org", nil }
	h.User = func(name string) (uid, gid string, err error) {
		if name != "istio-proxy" && name != "envoy" {
			return "", "", errors.New("unknown user " + name)
		}
		return "997", "995", nil
	}
	return h
}

func TestAMachineIsWhatItsFileSays(t *testing.T) {
	for _, tc := range []struct {
		name, add string
		env       []string
		want      func(*Config)
	}{
		{name: "as fairlead vm bootstrap writes it"},
		{name: "without an address", add: "ISTIO_SVC_IP=\n",
			want: func(c *Config) { c.InstanceIPs = []netip.Addr{netip.MustParseAddr("10.1.2.3")} }},
		{
			name: "variables of the agent over those of the script", add: "INSTANCE_IP=192.0.2.8\nPOD_NAMESPACE=apps\nPOD_NAME=db\n",
			want: func(c *Config) {
				c.InstanceIPs, c.Namespace, c.PodName = []netip.Addr{netip.MustParseAddr("192.0.2.8")}, "apps", "db"
			},
		},
		{
			name: "the environment over the file", env: []string{"SERVICE_ACCOUNT=other", "ISTIO_SVC_IP=192.0.2.9", "POD_NAME=mine"},
			want: func(c *Config) {
				c.ServiceAccount, c.InstanceIPs, c.PodName = "other", []netip.Addr{netip.MustParseAddr("192.0.2.9")}, "mine"
			},
		},
		{name: "another namespace of the control plane", add: "ISTIO_SYSTEM_NAMESPACE=mesh\n",
			want: func(c *Config) { c.DiscoveryAddresses[0] = "istiod.mesh.svc:15012" }},
		{name: "another port of the control plane", add: "ISTIO_PILOT_PORT=443\n",
			want: func(c *Config) { c.DiscoveryAddresses[0] = "istiod.istio-system.svc:443" }},
		{name: "another control plane", add: "PILOT_ADDRESS=cp.example:1\n", want: func(c *Config) { c.DiscoveryAddresses[0] = "cp.example:1" }},
		{
			name: "the ProxyConfig over the script", env: []string{"PROXY_CONFIG={discoveryAddress: 'there:1', serviceCluster: mine}"},
			want: func(c *Config) {
				c.DiscoveryAddresses[0], c.ProxyConfig.ClusterName = "there:1", &meshv1alpha1.ProxyConfig_ServiceCluster{ServiceCluster: "mine"}
			},
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			c := parse(t, flags(t, "--env-file", envFile), machine(clusterEnv+tc.add, tc.env...))
			want := &Config{
				PodName: "db-1", Namespace: "shop", ServiceAccount: "vm", InstanceIPs: []netip.Addr{netip.MustParseAddr("192.0.2.7")},
				DiscoveryAddresses: []string{"istiod.istio-system.svc:15012"},
				ProxyConfig:        &meshv1alpha1.ProxyConfig{ClusterName: &meshv1alpha1.ProxyConfig_ServiceCluster{ServiceCluster: "machines.shop"}},
			}
			if tc.want != nil {
				tc.want(want)
			}
			for _, d := range []string{
				cmp.Diff(want.PodName, c.PodName), cmp.Diff(want.Namespace, c.Namespace), cmp.Diff(want.ServiceAccount, c.ServiceAccount),
				cmp.Diff(want.InstanceIPs[0].String(), c.InstanceIPs[0].String()), cmp.Diff(want.DiscoveryAddresses, c.DiscoveryAddresses),
				cmp.Diff(want.ProxyConfig.GetServiceCluster(), c.ProxyConfig.GetServiceCluster()),
				cmp.Diff(map[string]string{"app": "machine", "it": "it's"}, c.Labels), cmp.Diff("machines", c.Meta["AUTO_REGISTER_GROUP"]),
			} {
				if d != "" {
					t.Error(d)
				}
			}
			if c.DNS == nil {
				t.Error("no DNS proxy")
			}
		})
	}
	if c := parse(t, flags(t, "--env-file", envFile, "--serviceCluster", "flag"),
		machine(clusterEnv)); c.ProxyConfig.GetServiceCluster() != "flag" {
		t.Errorf("service cluster %q: the flag does not win", c.ProxyConfig.GetServiceCluster())
	}
	// Without a file of variables, those of Istio's script mean nothing.
	if c := parse(t, flags(t), host(nil,
		append(pod, "ISTIO_SERVICE=x", "PILOT_ADDRESS=x:1", "ISTIO_SVC_IP=192.0.2.1")...)); c.DiscoveryAddresses[0] != defaultDiscovery ||
		c.ProxyConfig.GetServiceCluster() != "" || c.InstanceIPs[0].String() != "10.0.0.7" {
		t.Errorf("a Pod has %v, %q, %v", c.DiscoveryAddresses, c.ProxyConfig.GetServiceCluster(), c.InstanceIPs)
	}
}

func TestRedirectionOfAMachineIsWhatItsFileSays(t *testing.T) {
	for _, tc := range []struct {
		name, add  string
		env, flags []string
		want       func(*redirect.Options)
	}{
		{name: "as fairlead vm bootstrap writes it", want: func(*redirect.Options) {}},
		{name: "a flag over the file", flags: []string{"-b", "80", "-u", "5"}, want: func(o *redirect.Options) {
			o.InboundPorts.List, o.UIDs, o.GIDs = []uint16{80}, []uint32{5}, []uint32{1337}
		}},
		{name: "the environment over the file", env: []string{"ISTIO_SERVICE_CIDR=*"},
			want: func(o *redirect.Options) { o.Ranges = redirect.Ranges{All: true} }},
		{name: "a user by name", add: "ENVOY_USER=envoy\n", want: func(*redirect.Options) {}},
		{name: "a user by number", add: "PROXY_UID=7\nPROXY_GID=8\n",
			want: func(o *redirect.Options) { o.UIDs, o.GIDs = []uint32{7}, []uint32{8} }},
		{name: "TPROXY", add: "ISTIO_INBOUND_INTERCEPTION_MODE=TPROXY\n", want: func(o *redirect.Options) { o.Mode = redirect.TProxy }},
	} {
		t.Run(tc.name, func(t *testing.T) {
			got, err := parseRedirect(t, machine(clusterEnv+tc.add, tc.env...), append([]string{"--env-file", envFile}, tc.flags...)...)
			if err != nil {
				t.Fatal(err)
			}
			want, err := parseRedirect(t, host(map[string]string{"/etc/resolv.conf": "nameserver 192.0.2.53\n"}),
				"-b", "8080,9090", "-d", "15090,15021,15020,,22,15090,15021,15020", "-i", "10.0.0.0/8", "-u", "997", "-g", "995", "--redirect-dns")
			if err != nil {
				t.Fatal(err)
			}
			tc.want(want)
			if d := cmp.Diff(want, got, cmp.Comparer(func(a, b netip.Prefix) bool { return a == b }),
				cmp.Comparer(func(a, b netip.Addr) bool { return a == b })); d != "" {
				t.Error(d)
			}
		})
	}
	for text, want := range map[string]string{"ENVOY_USER=nobody-here\n": "ENVOY_USER", customRules + "=maybe\n": customRules} {
		if _, err := parseRedirect(t, machine(clusterEnv+text), "--env-file", envFile); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", text, err)
		}
	}
}

func TestABadEnvFileIsRefused(t *testing.T) {
	for _, tc := range []struct{ name, text, want string }{
		{"no name", "A=1\n=2\n", envFile + ":2: want NAME='value'"},
		{"a command", "# first\n\nrm -rf /\n", envFile + ":3: want NAME='value'"},
		{"a name that begins with a digit", "1A=2", envFile + ":1: want NAME='value'"},
		{"spaces around =", "A = 2", envFile + ":1: want NAME='value'"},
		{"two words", "A=secret word", envFile + ":1: A: there is more on the line"},
		{"a quote that is not closed", "A=1\nB='secret\n\n\n", envFile + ":2: B: the quote ' is not closed"},
		{"a variable", "A=1\nB=$A", envFile + ":2: B: a shell would not take '$'"},
		{"a variable in quotes", "\nB=\"x${A}\"", envFile + ":2: B: nothing is expanded"},
		{"a program", "A=\"`id`\"", envFile + ":1: A: nothing is expanded"},
		{"a second command", "A=secret;id", envFile + ":1: A: a shell would not take ';'"},
		{"a home directory", "A=~/x", envFile + ":1: A: a shell would not take '~'"},
		{"a backslash at the end", `A=secret\`, envFile + `:1: A: \ ends the file`},
		{"a zero byte", "A=\x00", envFile + ":1: the file has a zero byte"},
		{"a large file", strings.Repeat("#", maxEnvFile+1), "at most"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			h := machine(tc.text)
			_, err := Parse("sidecar", flags(t, "--env-file", envFile), h)
			_, errInit := parseRedirect(t, h, "--env-file", envFile)
			for _, err := range []error{err, errInit} {
				if err == nil || !strings.Contains(err.Error(), tc.want) || strings.Contains(err.Error(), "secret") {
					t.Errorf("got %v, want %q, and no value", err, tc.want)
				}
			}
		})
	}
	if _, err := Parse("sidecar", flags(t, "--env-file", "/none"), machine("")); !errors.Is(err, fs.ErrNotExist) ||
		!strings.Contains(err.Error(), "--env-file") {
		t.Errorf("a file that is not there: %v", err)
	}
	h := machine("A=1")
	h.Hostname = func() (string, error) { return "", errors.New("none") }
	if _, err := Parse("sidecar", flags(t, "--env-file", envFile), h); err == nil || !strings.Contains(err.Error(), "set POD_NAME") {
		t.Errorf("a host without a name: %v", err)
	}
}

// ofShell is what a shell makes of a file.
func ofShell(t *testing.T, text string) map[string]string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "env")
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), "/bin/sh", "-ac", `. "$0"; exec /usr/bin/env -0`, file)
	cmd.Env = []string{"LC_ALL=C"}
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("sh does not take %q: %v", text, err)
	}
	vars := map[string]string{}
	for kv := range strings.SplitSeq(strings.TrimSuffix(string(out), "\x00"), "\x00") {
		name, value, _ := strings.Cut(kv, "=")
		vars[name] = value
	}
	for _, name := range []string{"LC_ALL", "PWD", "_", "SHLVL", "OLDPWD"} { // a shell's own
		delete(vars, name)
	}
	return vars
}

func parsed(t *testing.T, text string) map[string]string {
	t.Helper()
	list, err := parseEnvFile("f", text)
	if err != nil {
		t.Fatal(err)
	}
	return newEnvironment(Host{Environ: list}).vars
}

func TestEnvFileIsReadAsAShellReadsIt(t *testing.T) {
	for name, text := range map[string]string{
		"of fairlead vm bootstrap": clusterEnv,
		"empty":                    "",
		"comments":                 "# A=1\n\n  B=2 # two\n\tC=x#y\n#",
		"quotes":                   `A="double \"q\" \$x \\ \a"` + "\nB=a'b'\"c\"d\nC=''\nD=\nE=\"it's\"\n",
		"several lines":            "A='one\n two\n'\nB=\"x\\\ny\"\nC=a\\\nb\n",
		"backslashes":              `A=a\ b\'c` + "\n" + `B='\n'` + "\n",
		"export":                   "export A=1\nexport\tB='2 3'\n",
		"the last counts":          "A=1\nA=2\n",
		"no end of line":           "A='x'",
		"bytes that are no UTF-8":  "A='\xff'\n",
	} {
		t.Run(name, func(t *testing.T) {
			if d := cmp.Diff(ofShell(t, text), parsed(t, text)); d != "" {
				t.Error(d)
			}
		})
	}
	if got := parsed(t, "A='x'\r\nB=y\r\n"); got["A"] != "x" || got["B"] != "y" {
		t.Errorf("with line ends of Windows: %q", got)
	}
}

// FuzzEnvFile: no text makes the parser fail without a line; a value that fairlead vm bootstrap quotes comes back as it
// was, and so does one in double quotes.
func FuzzEnvFile(f *testing.F) {
	for _, seed := range []string{clusterEnv, "A=\"\\\"", "export", "A='", "A=\\", "it's \"$x\" `y` \\\n", "\r\n", "A=b\r\nC"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		if list, err := parseEnvFile("f", text); err != nil && !strings.HasPrefix(err.Error(), "f:") {
			t.Errorf("%v names no line", err)
		} else if slices.ContainsFunc(list, func(kv string) bool { return !strings.Contains(kv, "=") }) {
			t.Errorf("%q", list)
		}
		if strings.Contains(text, "\x00") {
			return
		}
		single := "'" + strings.ReplaceAll(text, "'", `'"'"'`) + "'"
		double := `"` + strings.NewReplacer("$", `\$`, "`", "\\`", `"`, `\"`, `\`, `\\`).Replace(text) + `"`
		list, err := parseEnvFile("f", "A="+single+"\nB="+double+"\n")
		if err != nil || !slices.Equal(list, []string{"A=" + text, "B=" + text}) {
			t.Errorf("%q: %q, %v", text, list, err)
		}
	})
}
