// Package plan decides what `fairlead up` runs: which processes with which arguments on which addresses, and the Pods
// and Sidecars that describe them to config-watcher. New makes a Plan from the mesh files and Options, without I/O:
// Options has functions that find programs and free ports. cli/up.go calls New, package local runs the Plan.
package plan

import (
	"errors"
	"fmt"
	"net/netip"
	"path/filepath"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"

	"fairlead.dev/pkg/lists"
	"fairlead.dev/pkg/meshdefaults"
	"fairlead.dev/services/installer/internal/local/meshfile"
	"fairlead.dev/services/installer/internal/local/rundir"
)

// Istio's port numbers, and those that `fairlead up` adds.
const (
	ConfigWatcherPort = 15060
	SecurePort        = 15012
	OpsPort           = 15014
	AgentPort         = meshdefaults.StatusPort
	ReadyPort         = 15021
	StatsPort         = 15090
	// ProxyPort is the HTTP forward proxy that a sidecar offers to its application.
	ProxyPort = 15080
)

// InstanceLabel has the Pod's name as its value, so that a generated Sidecar selects exactly one Pod.
const InstanceLabel = "fairlead.dev/instance"

// Options are the inputs of New beside the mesh files.
type Options struct {
	Layout rundir.Layout
	// Range is the loopback range of all addresses.
	Range netip.Prefix
	// XDSServers is how many xds-servers run.
	XDSServers int
	// TrustDomain of all identities.
	TrustDomain string
	// ConfigPaths are the files and directories that config-watcher reads.
	ConfigPaths []string
	// FileGrace is how long the objects of a file stay that is gone, empty or cut off; 0 means config-watcher's
	// default.
	FileGrace time.Duration
	// LogLevel of Fairlead's own processes.
	LogLevel string
	// Drain is how long a proxy may take to finish its requests when it is stopped.
	Drain time.Duration
	// Find returns the path of a program.
	Find func(name string) (string, error)
	// Envoy is the path of the Envoy binary.
	Envoy string
	// FreePort returns a free TCP port of 127.0.0.1.
	FreePort func() (uint16, error)
	// BaseEnv is the environment that every process inherits (PATH and the like).
	BaseEnv []string
}

// Process is one program to run.
type Process struct {
	// Name is unique within the plan: "ca", "xds-server-0", "reviews-v1-0.default/istio-proxy".
	Name string
	Path string
	Args []string
	Env  []string
	// Dir is the working directory; empty means the caller's.
	Dir string
	// Log is the file that standard output and error go to.
	Log string
	// Stamped puts the time before each line of the output.
	Stamped bool
	// Grace is how long the process may take to end after SIGTERM.
	Grace time.Duration
}

// Service is one of Fairlead's own services.
type Service struct {
	Process
	// Program is the binary's name, as "xds-server" of xds-server-0.
	Program string
	// GRPC and Ops are the addresses it listens on.
	GRPC, Ops netip.AddrPort
	// Account is the service account of its identity in contract.SystemNamespace.
	Account string
	// TokenFile holds the token with which it asks the ca for its certificate.
	TokenFile string
}

// Kind says how a Pod takes part in the mesh.
type Kind string

// Kinds of Pods. A Plain Pod has no proxy.
const (
	Sidecar Kind = "sidecar"
	Gateway Kind = "gateway"
	// Proxyless is a Pod whose application is a proxyless gRPC client: it has an agent and no Envoy.
	Proxyless Kind = "proxyless"
	Plain     Kind = "plain"
)

// Pod is one replica of a Deployment.
type Pod struct {
	Name, Namespace string
	// Workload is the Deployment's name, Ordinal the replica's number, from 0.
	Workload       string
	Ordinal        int
	ServiceAccount string
	Labels         map[string]string
	Annotations    map[string]string
	IP             netip.Addr
	Kind           Kind
	// Containers are the applications; empty for a gateway.
	Containers []Container
	// Agent is the node-agent; nil for a plain Pod.
	Agent *Agent
	// Sidecar is the generated Sidecar object as JSON; nil if a Sidecar in the mesh files selects the Pod, or none is
	// needed.
	Sidecar []byte
	// Listens are the addresses that the Pod's proxy, or a plain Pod's application, needs, as far as they are known
	// beforehand. local.CheckPorts checks that they are free.
	Listens []netip.AddrPort

	spec *corev1.PodTemplateSpec
}

// ID is "<pod>.<namespace>", the proxy's name on the command line.
func (p *Pod) ID() string { return p.Name + "." + p.Namespace }

// NodeID is Envoy's node id.
func (p *Pod) NodeID() string {
	t := "sidecar"
	if p.Kind == Gateway {
		t = "router"
	}
	return fmt.Sprintf("%s~%s~%s~%s.svc.cluster.local", t, p.IP, p.ID(), p.Namespace)
}

// Processes lists the Pod's processes: its applications and its agent.
func (p *Pod) Processes() []Process {
	list := lists.Map(p.Containers, func(c Container) Process { return c.Process })
	if p.Agent != nil {
		list = append(list, p.Agent.Process)
	}
	return list
}

// StopOrder lists the names of the Pod's processes in groups that are stopped one after the other: an Envoy before the
// applications, whose last answers it sends; the agent of a proxyless gRPC client after them, because they use it until
// they end.
func (p *Pod) StopOrder() [][]string {
	apps := lists.Map(p.Containers, func(c Container) string { return c.Name })
	switch {
	case p.Agent == nil:
		return [][]string{apps}
	case p.Agent.NoEnvoy:
		return [][]string{apps, {p.Agent.Name}}
	}
	return [][]string{{p.Agent.Name}, apps}
}

// Container is one application process.
type Container struct {
	Process
	// Container is its name in the Pod.
	Container string
	// Ports say on which address the application listens for each container port.
	Ports []Port
	// Listens are the addresses that requests are sent to, the one of $PORT first.
	Listens []netip.AddrPort
	// Probe is the readiness probe; nil means ready when it listens on all of Listens.
	Probe *Probe
}

// Port maps a container port to where the application listens.
type Port struct {
	Name   string
	Number uint16
	// Listen is the address that the application is told to listen on.
	Listen netip.AddrPort
}

// Probe is a readiness probe. Exactly one of URL and TCP is set.
type Probe struct {
	// URL is requested with GET; a status from 200 to 399 is success.
	URL string
	// Host and Headers of the request to URL.
	Host    string
	Headers map[string]string
	// TCP is an address to connect to.
	TCP string

	InitialDelay, Period, Timeout      time.Duration
	SuccessThreshold, FailureThreshold int
}

// Agent is a Pod's node-agent.
type Agent struct {
	Process
	// StateDir holds its sockets.
	StateDir string
	// TokenFile holds the Pod's token.
	TokenFile string
	// Ready is where /healthz/ready answers 200 when the proxy accepts traffic; Status is the agent's own HTTP server.
	Ready, Status netip.AddrPort
	// NoEnvoy is set for proxyless gRPC clients.
	NoEnvoy bool
}

// AdminSocket is the unix socket of Envoy's admin interface; empty without Envoy.
func (a *Agent) AdminSocket() string {
	if a.NoEnvoy {
		return ""
	}
	return filepath.Join(a.StateDir, "envoy-admin.sock")
}

// GRPCBootstrap is the xDS bootstrap file of a proxyless gRPC client. The agent writes it after all files that it
// refers to.
func (a *Agent) GRPCBootstrap() string { return filepath.Join(a.StateDir, "grpc-bootstrap.json") }

// URL is an address of a gateway, for requests from outside of the mesh.
type URL struct {
	// Pod is the gateway's Pod.
	Pod string
	URL string
	// Hosts are the hosts of the Gateway's server there; "*" means any.
	Hosts []string
}

// Plan is everything to run.
type Plan struct {
	TrustDomain string
	Services    []*Service
	Pods        []*Pod
	URLs        []URL
	// Example is a command that calls a Service as one of the Pods; empty if there is no such Service or Pod.
	Example string
	// Warnings are about settings that likely do not do what their author wants.
	Warnings []string
}

// ConfigWatcher returns the process of config-watcher.
func (p *Plan) ConfigWatcher() *Service {
	i := slices.IndexFunc(p.Services, func(s *Service) bool { return s.Program == "config-watcher" })
	return p.Services[i]
}

// New plans a mesh. It reports all mistakes in the mesh files at once, joined.
func New(m *meshfile.Mesh, o Options) (*Plan, error) {
	addrs, err := newAddresses(o.Range, o.XDSServers)
	if err != nil {
		return nil, err
	}
	p := &Plan{TrustDomain: o.TrustDomain}
	if err := p.addServices(o, addrs); err != nil {
		return nil, err
	}
	var errs []error
	for _, d := range m.Deployments {
		pods, err := newPods(m, d, o, addrs)
		errs = append(errs, err)
		p.Pods = append(p.Pods, pods...)
	}
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	p.Example = example(m, p.Pods)
	p.Warnings = append(unusedFields(m), idleServices(m)...)
	for _, pod := range p.Pods {
		if pod.Kind == Gateway {
			urls, warnings := gatewayURLs(m, pod)
			p.URLs = append(p.URLs, urls...)
			p.Warnings = append(p.Warnings, warnings...)
		}
	}
	return p, nil
}

// LongestPodID returns the longest Pod.ID of the mesh's Deployments, for rundir.NewLayout.
func LongestPodID(m *meshfile.Mesh) string {
	longest := ""
	for _, d := range m.Deployments {
		id := fmt.Sprintf("%s-%d.%s", d.Name, max(replicas(d)-1, 0), d.Namespace)
		if len(id) > len(longest) {
			longest = id
		}
	}
	return longest
}

func replicas(d meshfile.Deployment) int {
	if d.Spec.Replicas == nil {
		return 1
	}
	return int(*d.Spec.Replicas)
}
