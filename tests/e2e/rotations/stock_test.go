package rotations

import (
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"fairlead.dev/pkg/testkit"
	"fairlead.dev/tests/e2e/internal/hostmesh"
	"fairlead.dev/tests/internal/binaries"
	"fairlead.dev/tests/internal/netns"
	"fairlead.dev/tests/internal/probe"
)

// joinStock starts a sidecar of Istio's: pilot-agent as the image proxyv2 starts it, told where discovery is and
// nothing of the ca. The one that watches has PROXY_CONFIG_XDS_AGENT, the other a short SECRET_TTL.
func (r *rig) joinStock(name string) {
	r.t.Helper()
	m := r.members[name]
	dir, template := istio(r.t)
	home := r.Path("home-" + name)
	secrets := filepath.Join(home, "var/run/secrets")
	agent := r.Path("pilot-agent-" + name)
	text, err := os.ReadFile(template)
	testkit.NoError(r.t, errors.Join(err,
		os.MkdirAll(filepath.Join(secrets, "tokens"), 0o755), os.MkdirAll(filepath.Join(secrets, "istio"), 0o755),
		os.MkdirAll(filepath.Join(home, "etc"), 0o755),
		binaries.Publish(filepath.Join(dir, "pilot-agent"), agent),
		// The kubelet keeps this file, too.
		os.Symlink(r.Plane().RootFile, filepath.Join(secrets, "istio/root-cert.pem")),
		r.Plane().WritePodToken(filepath.Join(secrets, "tokens/istio-token"), hostmesh.ProxyUID, "apps", name, name)))
	testkit.NoError(r.t, os.WriteFile(filepath.Join(home, "bootstrap.json"), text, 0o644))
	testkit.NoError(r.t, filepath.WalkDir(home, func(path string, _ fs.DirEntry, err error) error {
		return errors.Join(err, os.Lchown(path, hostmesh.ProxyUID, hostmesh.ProxyUID))
	}))
	config, err := json.Marshal(map[string]any{
		"discoveryAddress": r.Plane().Find("xds-server/0")[0].GRPC, "binaryPath": r.Path("envoy"), "configPath": "./etc/istio/proxy",
		"proxyBootstrapTemplatePath": filepath.Join(home, "bootstrap.json"), "concurrency": 1, "terminationDrainDuration": "1s",
		"proxyStatsMatcher": map[string]any{"inclusionRegexps": []string{".*[.]ssl[.].*"}},
	})
	testkit.NoError(r.t, err)
	env := []string{
		"PROXY_CONFIG=" + string(config), "POD_NAME=" + name, "POD_NAMESPACE=apps", "INSTANCE_IP=" + m.host.IP, "SERVICE_ACCOUNT=" + name,
		"TRUST_DOMAIN=cluster.local", "ISTIO_META_CLUSTER_ID=Kubernetes", "ISTIO_META_INTERCEPTION_MODE=REDIRECT",
		`ISTIO_METAJSON_LABELS={"app":"` + name + `","serves":"all"}`, "ISTIO_META_WORKLOAD_NAME=" + name,
	}
	if name == watches {
		env = append(env, "PROXY_CONFIG_XDS_AGENT=true")
	}
	if name == stock || r.refresh > time.Second { // nobody hides how late the program is
		env = append(env, "SECRET_TTL="+(*ttl).String())
	}
	log := r.Path("logs/" + name + ".log")
	p, err := m.host.Start(netns.Program{
		Name: "pilot-agent of " + name, Path: agent, UID: hostmesh.ProxyUID, Env: env, Stdout: log, Stderr: log,
		Args:   []string{"proxy", "sidecar", "--domain", "apps.svc.cluster.local", "--proxyLogLevel=warning"},
		Change: func(cmd *exec.Cmd) error { cmd.Dir = home; return nil },
	})
	testkit.NoError(r.t, err)
	r.t.Cleanup(func() { stop(r.t, p) })
	m.agent = func() *netns.Process { return p }
	client := probe.Client(m.host.DialBy)
	m.admin = func(page string) ([]byte, error) {
		return probe.Get(r.t.Context(), client, "http://127.0.0.1:15000"+page)
	}
}

// stop ends a program with what it has started.
func stop(t *testing.T, p *netns.Process) {
	t.Helper()
	if err := p.Stop(time.Minute); err != nil {
		t.Error(err)
	}
	p.KillGroup()
}
