package harness

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
	networking "istio.io/api/networking/v1beta1"
	"sigs.k8s.io/yaml"

	"fairlead.dev/pkg/proxyconfig"
	"fairlead.dev/proto/fairlead/contract"
	"fairlead.dev/tests/internal/netns"
	"fairlead.dev/tests/internal/probe"
	"fairlead.dev/tests/internal/wait"
	"fairlead.dev/tests/scenarios/internal/echo"
	"fairlead.dev/tests/scenarios/internal/format"
	"fairlead.dev/tests/scenarios/internal/held"
	"fairlead.dev/tests/scenarios/internal/resolver"
	"fairlead.dev/tests/scenarios/internal/witness"
)

const (
	// proxyUID is the user that Istio's proxies run as.
	proxyUID = 1337
	// readyURL is where a proxy tells whether it takes traffic.
	readyURL = "http://127.0.0.1:15021/healthz/ready"
)

// workload is a machine of the topology.
type workload struct {
	harness *Harness
	spec    *format.Workload
	host    *netns.Host

	// live is the workload's Pod in a cluster; nil on a machine of the harness.
	live *livePod

	prepared bool
	// witness stands between agent and proxy; nil without a proxy.
	witness    *witness.Witness
	agent, app *netns.Process
	// shown tells whether there is a Pod object, and ready what it says.
	shown, ready bool
	// xds is the workload's proxy.
	xds          held.Proxy
	deprecations deprecations
}

// newWorkload is one of the topology's, on no machine yet.
func (h *Harness) newWorkload(spec *format.Workload) *workload {
	l := &workload{harness: h, spec: spec}
	l.xds = held.Proxy{Name: spec.Name, Get: l.admin}
	return l
}

func (l *workload) path(name string) string { return l.harness.path(name + "-" + l.spec.Name) }

// state is the directory of the agent.
func (l *workload) state() string {
	if l.live != nil {
		return l.live.state
	}
	return l.path("proxy")
}

// log is what the agent and its proxy write of themselves.
func (l *workload) log() string {
	if l.live != nil {
		return l.live.log
	}
	return l.harness.path("logs/" + l.spec.Name + ".log")
}

func (l *workload) isGateway() bool { return l.spec.Kind == format.Gateway }

func (l *workload) hasApp() bool { return !l.isGateway() }

func (l *workload) hasAgent() bool { return l.spec.HasProxy() || l.spec.Kind == format.Proxyless }

// running tells whether all is that should be.
func (l *workload) running() bool {
	return (!l.hasApp() || running(l.app)) && (!l.hasAgent() || running(l.agent))
}

func running(p *netns.Process) bool { return p != nil && p.Running() }

// prepare makes files and rules of the workload, once.
func (l *workload) prepare(ctx context.Context) error {
	if l.prepared {
		return nil
	}
	if err := errors.Join(os.Mkdir(l.path("pod"), 0o755), os.WriteFile(l.path("resolv"), []byte(l.resolvConf()), 0o644)); err != nil {
		return err
	}
	if l.hasAgent() {
		if err := l.prepareAgent(ctx); err != nil {
			return err
		}
	}
	if l.hasApp() {
		if err := l.prepareApp(); err != nil {
			return err
		}
	}
	l.prepared = true
	return nil
}

// search are the domains that a short name is looked for in.
func (l *workload) search() []string {
	return resolver.Search(l.spec.Namespace, domain)
}

func (l *workload) resolvConf() string {
	return fmt.Sprintf("nameserver %s\nsearch %s\noptions ndots:5\n", l.harness.network.Hub.IP, strings.Join(l.search(), " "))
}

func (l *workload) prepareAgent(ctx context.Context) error {
	h := l.harness
	podInfo := map[string]map[string]string{"labels": l.labels(), "annotations": l.spec.Annotations}
	for name, content := range podInfo {
		if err := os.WriteFile(filepath.Join(l.path("pod"), name), []byte(downward(content)), 0o644); err != nil {
			return err
		}
	}
	if err := errors.Join(os.Mkdir(l.state(), 0o700), os.Chown(l.state(), proxyUID, proxyUID),
		h.plane.WriteToken(l.path("token"), proxyUID, l.spec.Namespace, l.spec.ServiceAccount, contract.TokenAudience)); err != nil {
		return err
	}
	if h.options.MountedCertificates {
		if err := l.mountCertificate(ctx); err != nil {
			return err
		}
	}
	if err := l.startWitness(); err != nil {
		return err
	}
	if l.spec.Kind != format.Sidecar || l.spec.Capture == format.None {
		return nil
	}
	log := h.path("logs/" + l.spec.Name + ".init.log")
	init, err := l.host.Start(netns.Program{
		Name: "node-agent init of " + l.spec.Name, Path: h.path("node-agent"), Env: l.environment(), Stdout: log, Stderr: log,
		Args: []string{
			"init", "-m", l.spec.Capture, "--pod-info-dir", l.path("pod"), "--resolv-conf", l.path("resolv"),
			"--redirect-backend", cmp.Or(h.options.Redirect, "auto"),
		},
	})
	if err != nil {
		return err
	}
	init.Expect()
	select {
	case <-init.Ended():
	case <-ctx.Done():
		init.Kill()
	}
	if err := init.Err(); err != nil {
		raw, _ := os.ReadFile(log)
		return fmt.Errorf("%s: %w: %s", init.Name, err, raw)
	}
	return nil
}

// startWitness has the proxy tell of connections and requests, whatever the mesh has it log.
func (l *workload) startWitness() error {
	if !l.spec.HasProxy() {
		return nil
	}
	h := l.harness
	agent, socket := filepath.Join(l.state(), probe.AgentXDS), filepath.Join(l.state(), "WIT")
	var err error
	if l.witness, err = witness.Start(socket, agent, h.AccessLog(l.spec.Name), proxyUID); err != nil {
		return err
	}
	return witness.Program(l.path("envoy"), h.path("envoy"), agent, socket)
}

// downward writes labels or annotations as the downward API does.
func downward(content map[string]string) string {
	var out strings.Builder
	for _, k := range slices.Sorted(maps.Keys(content)) {
		fmt.Fprintf(&out, "%s=%s\n", k, strconv.Quote(content[k]))
	}
	return out.String()
}

// environment is what Istio's injection tells the agent.
func (l *workload) environment() []string {
	config := l.proxyConfig()
	text, _ := json.Marshal(config) // it was read from JSON
	env := []string{
		"POD_NAME=" + l.spec.Name, "POD_NAMESPACE=" + l.spec.Namespace, "SERVICE_ACCOUNT=" + l.spec.ServiceAccount,
		"INSTANCE_IP=" + strings.Join(l.addresses(), ","),
		"TRUST_DOMAIN=" + l.harness.mesh.trustDomain, "PROXY_CONFIG=" + string(text),
		"ISTIO_META_CLUSTER_ID=" + cluster, "ISTIO_META_WORKLOAD_NAME=" + l.spec.Name, "ISTIO_META_INTERCEPTION_MODE=" + l.spec.Capture,
		"ISTIO_META_APP_CONTAINERS=app", "ISTIO_META_MESH_ID=" + l.harness.mesh.trustDomain,
	}
	if l.spec.Network != "" {
		env = append(env, "ISTIO_META_NETWORK="+l.spec.Network)
	}
	if l.spec.Kind == format.Proxyless {
		env = append(env, "ISTIO_META_GENERATOR=grpc")
	}
	for _, v := range config.Environment() {
		env = append(env, v.Name+"="+v.Value)
	}
	return append(env, l.mountedEnvironment()...)
}

// proxyConfig is what the workload's proxy is started with now.
func (l *workload) proxyConfig() proxyconfig.Config {
	var resources []proxyconfig.Resource
	for _, doc := range l.harness.store.Snapshot() {
		if doc.Kind() != "ProxyConfig" {
			continue
		}
		raw, _ := json.Marshal(doc.At("spec"))
		spec := &networking.ProxyConfig{}
		if json.Unmarshal(raw, spec) == nil {
			resources = append(resources, proxyconfig.Resource{Namespace: doc.Namespace(), Name: doc.Name(), Spec: spec})
		}
	}
	var own proxyconfig.Config
	if err := yaml.Unmarshal([]byte(l.spec.Annotations[proxyconfig.Annotation]), &own); err != nil {
		own = nil // the agent refuses it
	}
	mesh := l.harness.mesh
	return proxyconfig.Of(mesh.proxyConfig, resources, mesh.rootNamespace,
		proxyconfig.Workload{Namespace: l.spec.Namespace, Labels: l.labels(), Own: own})
}

// addresses are those of the workload; a Pod has none before it runs.
func (l *workload) addresses() []string {
	if l.host == nil {
		return nil
	}
	all := []string{l.host.IP.String()}
	if l.host.IP6.IsValid() {
		all = append(all, l.host.IP6.String())
	}
	return all
}

// start starts what does not run of the workload, and waits until it is ready.
func (l *workload) start(ctx context.Context) error {
	err := l.prepare(ctx)
	if err == nil && l.hasAgent() {
		err = l.startAgent()
	}
	if err == nil && l.hasApp() {
		err = l.startApp(ctx)
	}
	if err == nil {
		err = l.wait(ctx)
	}
	if err != nil {
		return fmt.Errorf("%s: %w", l.spec.Name, err)
	}
	return nil
}

func (l *workload) startAgent() error {
	if running(l.agent) {
		return nil
	}
	h := l.harness
	role := "sidecar"
	if l.isGateway() {
		role = "router"
	}
	p := netns.Program{
		Name: "agent of " + l.spec.Name, Path: h.path("node-agent"), Env: l.environment(), UID: proxyUID,
		Stdout: h.path("logs/" + l.spec.Name + accessLog), Stderr: l.log(), ResolvConf: l.path("resolv"),
		Args: []string{
			"proxy", role, "--state-dir", l.state(), "--token-file", l.path("token"), "--root-cert-file", h.plane.RootFile, "--pod-info-dir",
			l.path("pod"),
			"--envoy-binary", l.path("envoy"), "--discovery-address", h.xdsAddresses(), "--ca-address", h.plane.CA.GRPC,
			"--proxy-file-flush-interval", "50ms",
			"--proxy-restarts", "0", // what a scenario kills stays away until the scenario starts it
		},
	}
	p.Args = append(p.Args, l.proxyConfig().Flags()...)
	if l.spec.Capture == format.TProxy {
		p.Capabilities = []uintptr{unix.CAP_NET_ADMIN}
	}
	var err error
	l.agent, err = l.host.Start(p)
	return err
}

// wait waits until what was started of application and proxy is ready.
func (l *workload) wait(ctx context.Context) error {
	if l.app != nil {
		if err := l.app.Until(ctx, readyWithin, func() error {
			_, err := os.Stat(l.journal())
			return err
		}); err != nil {
			return err
		}
	}
	if l.agent == nil || !l.spec.HasProxy() {
		return nil
	}
	return l.agent.Until(ctx, readyWithin, func() error { return probe.Ready(ctx, client(l.host), readyURL) })
}

func (l *workload) stop() error {
	return wait.Both(l.stopAgent, l.stopApp)
}

func (l *workload) stopAgent() error {
	if l.agent == nil {
		return nil
	}
	err := l.agent.Stop(endWithin)
	l.agent = nil
	return err
}

func (l *workload) stopApp() error {
	if l.app == nil {
		return nil
	}
	err := l.app.Stop(endWithin)
	l.app = nil
	return err
}

// killEnvoy kills Envoy; its agent ends with it.
func (l *workload) killEnvoy() error {
	if !running(l.agent) {
		return fmt.Errorf("the proxy of %s does not run", l.spec.Name)
	}
	l.agent.Expect()
	for _, pid := range netns.Children(l.agent.PID()) {
		if err := unix.Kill(pid, unix.SIGKILL); err != nil && !errors.Is(err, unix.ESRCH) {
			return err
		}
	}
	err := l.agent.Wait(endWithin)
	l.agent = nil
	return err
}

func (l *workload) kill(p **netns.Process) {
	if *p != nil {
		(*p).Kill()
	}
	*p = nil
}

// journal is the socket at which the application tells what came.
func (l *workload) journal() string { return l.path("journal") }

// Journal is the unix socket at which the application of a workload tells what came.
func (h *Harness) Journal(name string) string {
	if l := h.workloads[name]; l != nil && l.hasApp() {
		return l.journal()
	}
	return ""
}

// bootstrap is what the agent writes for a gRPC program that speaks xDS itself; empty if the workload is none.
func (l *workload) bootstrap() string {
	if l.spec.Kind != format.Proxyless {
		return ""
	}
	return filepath.Join(l.state(), "grpc-bootstrap.json")
}

// Calls lists the identifiers of the requests that the applications of a workload have begun to execute, one for each
// time, of those that have ended too.
func (h *Harness) Calls(name string) ([]string, error) {
	l, err := h.find(name)
	if err != nil {
		return nil, err
	}
	raw, err := os.ReadFile(l.path("calls"))
	return strings.Fields(string(raw)), err
}

func (l *workload) startApp(ctx context.Context) error {
	if running(l.app) {
		return nil
	}
	var env []string
	if file := l.bootstrap(); file != "" {
		env = append(env, "GRPC_XDS_BOOTSTRAP="+file)
		if err := wait.Until(ctx, often, readyWithin, func() error { _, err := os.Stat(file); return err }); err != nil {
			return err
		}
	}
	if err := os.Remove(l.journal()); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	log := l.harness.path("logs/" + l.spec.Name + ".app.log")
	var err error
	l.app, err = l.host.Start(netns.Program{
		Name: "application of " + l.spec.Name, Path: l.harness.files.Echo, Args: []string{l.path("app")}, Env: env, Stdout: log, Stderr: log,
		ResolvConf: l.path("resolv"),
	})
	return err
}

// prepareApp writes the application's configuration.
func (l *workload) prepareApp() error {
	h := l.harness
	c := echo.Config{
		Workload: l.spec.Name, IPs: l.addresses(), Journal: l.journal(), Calls: l.path("calls"), Shared: h.path("shared"), Resolver: h.resolver,
		Search: l.search(), Proxyless: l.spec.Kind == format.Proxyless,
	}
	for _, p := range l.spec.Ports {
		port := echo.Port{Name: p.Name, Port: p.TargetPort, App: p.App, Bind: p.Bind}
		if p.TLS != nil || p.App == format.AppHTTPS || p.App == format.AppTLS {
			if err := l.secure(&port, p.TLS); err != nil {
				return err
			}
		}
		c.Ports = append(c.Ports, port)
	}
	raw, err := json.Marshal(c)
	if err != nil {
		return err
	}
	return os.WriteFile(l.path("app"), raw, 0o644)
}

// secure gives a port of the application its certificates.
func (l *workload) secure(port *echo.Port, asked *format.PortTLS) error {
	h := l.harness
	if asked == nil {
		asked = &format.PortTLS{}
	}
	m := h.options.Certificates[asked.Cert]
	if m == nil {
		names := []string{l.spec.Name}
		if s := l.spec.Service; s != format.NoService {
			names = []string{s, s + "." + l.spec.Namespace, s + "." + l.spec.Namespace + ".svc", s + "." + l.spec.Namespace + ".svc.cluster.local"}
		}
		for name, workloads := range h.topology.DNS {
			if slices.Contains(workloads, l.spec.Name) {
				names = append(names, name)
			}
		}
		var err error
		if m, err = format.NewMaterial(names[0], format.Certificate{DNSNames: names}, h.issuer, time.Now()); err != nil {
			return err
		}
	}
	file := l.path("app-" + port.Name)
	port.CertFile, port.KeyFile = file+".crt", file+".key"
	err := errors.Join(os.WriteFile(port.CertFile, m.ChainPEM, 0o644), os.WriteFile(port.KeyFile, m.KeyPEM, 0o600))
	if asked.ClientCA != "" {
		ca := h.options.Certificates[asked.ClientCA]
		if ca == nil {
			return fmt.Errorf("port %s of %s: tls.clientCA: there is no certificate %q", port.Name, l.spec.Name, asked.ClientCA)
		}
		port.ClientCAFile = file + "-ca.crt"
		err = errors.Join(err, os.WriteFile(port.ClientCAFile, ca.CertPEM, 0o644))
	}
	return err
}
