// Package plan decides what `fairlead up` runs: which processes with which arguments, on which addresses, and the objects that describe them
// to the mesh. It is pure: mesh and options in, plan out; free ports are asked of the caller.
package plan

import (
	"errors"
	"fmt"
	"net/netip"
	"path/filepath"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"

	"fairlead.dev/services/installer/internal/mesh"
	"fairlead.dev/services/installer/internal/rundir"
)

// Ports that Istio's users know.
const (
	ConfigWatcherPort = 15060
	SecurePort        = 15012
	OpsPort           = 15014
	AgentPort         = 15020
	ReadyPort         = 15021
	StatsPort         = 15090
	// ProxyPort is the HTTP forward proxy that a sidecar offers to its application.
	ProxyPort = 15080
)

// InstanceLabel names a Pod on its own objects, so that a generated Sidecar selects exactly one.
const InstanceLabel = "fairlead.dev/instance"

// Options are what the mesh files do not say.
type Options struct {
	Layout rundir.Layout
	// Range is the loopback range that addresses are taken from.
	Range netip.Prefix
	// XDSServers is how many xds-servers run.
	XDSServers int
	// TrustDomain of all identities.
	TrustDomain string
	// ConfigPaths are the files and directories that config-watcher reads.
	ConfigPaths []string
	// FileGrace is how long the objects of a file that is gone, empty or cut off stay; config-watcher's default if 0.
	FileGrace time.Duration
	// LogLevel of Fairlead's own processes.
	LogLevel string
	// Drain is how long a proxy may take to finish what is under way when the mesh stops.
	Drain time.Duration
	// Find resolves the name of a program to a path.
	Find func(name string) (string, error)
	// Envoy is the path of the Envoy binary.
	Envoy string
	// FreePort returns a TCP port of 127.0.0.1 that nobody uses.
	FreePort func() (uint16, error)
	// BaseEnv is what every process inherits (PATH and the like).
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
	// Grace is how long the process may take to stop.
	Grace time.Duration
}

// Service is one of Fairlead's own services.
type Service struct {
	Process
	// Program is the binary's name, "xds-server".
	Program string
	// GRPC and Ops are the addresses it listens on.
	GRPC, Ops netip.AddrPort
	// Account is the service account of its identity in contract.SystemNamespace.
	Account string
	// TokenFile holds its token for the ca.
	TokenFile string
}

// Kind says how a Pod takes part in the mesh.
type Kind string

// The kinds of Pods.
const (
	Sidecar Kind = "sidecar"
	Gateway Kind = "gateway"
	// Proxyless is an application that speaks xDS itself: it has an agent and no Envoy.
	Proxyless Kind = "proxyless"
	Plain     Kind = "plain"
)

// Pod is one replica of a Deployment.
type Pod struct {
	Name, Namespace string
	// Workload is the Deployment's name.
	Workload       string
	ServiceAccount string
	Labels         map[string]string
	Annotations    map[string]string
	IP             netip.Addr
	Kind           Kind
	// Containers are the applications; empty for a gateway.
	Containers []Container
	// Agent is the node-agent; nil for a plain Pod.
	Agent *Agent
	// Sidecar is the generated Sidecar object as JSON; nil if a Sidecar of the user's selects the Pod, or none is needed.
	Sidecar []byte
	// Listens are the addresses that the Pod's proxy, or a plain Pod's application, will listen on, as far as they are known beforehand.
	Listens []netip.AddrPort

	spec *corev1.PodTemplateSpec
}

// ID is "<pod>.<namespace>", the name that the CLI's users know a proxy by.
func (p *Pod) ID() string { return p.Name + "." + p.Namespace }

// NodeID is Envoy's node id.
func (p *Pod) NodeID() string {
	t := "sidecar"
	if p.Kind == Gateway {
		t = "router"
	}
	return fmt.Sprintf("%s~%s~%s~%s.svc.cluster.local", t, p.IP, p.ID(), p.Namespace)
}

// Container is one application process.
type Container struct {
	Process
	// Container is its name in the Pod.
	Container string
	// Ports tell where each container port is really listened on.
	Ports []Port
	// Listens are those of its ports that requests are sent to, that of $PORT first.
	Listens []netip.AddrPort
	// Probe decides whether it is ready; nil means as soon as it listens on all of Listens.
	Probe *Probe
}

// Port maps a container port to where the application listens.
type Port struct {
	Name   string
	Number uint16
	// Listen is the address handed to the application.
	Listen netip.AddrPort
}

// Probe is a readiness probe. Exactly one of URL and TCP is set.
type Probe struct {
	// URL to GET; 200-399 is success.
	URL string
	// Host and Headers of the request.
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
	// Ready answers 200 at /healthz/ready when the proxy takes traffic; Status is the agent's own HTTP server.
	Ready, Status netip.AddrPort
	// NoEnvoy is set where the application speaks xDS itself.
	NoEnvoy bool
}

// AdminSocket is Envoy's admin interface; empty where there is no Envoy.
func (a *Agent) AdminSocket() string {
	if a.NoEnvoy {
		return ""
	}
	return filepath.Join(a.StateDir, "envoy-admin.sock")
}

// GRPCBootstrap is the bootstrap of an application that speaks xDS itself. It is there once everything it refers to is.
func (a *Agent) GRPCBootstrap() string { return filepath.Join(a.StateDir, "grpc-bootstrap.json") }

// URL is a way into the mesh.
type URL struct {
	// Pod that answers.
	Pod string
	URL string
	// Hosts that the Gateway serves there; "*" is any.
	Hosts []string
}

// Plan is everything to run.
type Plan struct {
	TrustDomain string
	Services    []*Service
	Pods        []*Pod
	URLs        []URL
	// Warnings are remarks on things that are likely not meant.
	Warnings []string
}

// ConfigWatcher is the service that the CLI talks to.
func (p *Plan) ConfigWatcher() *Service {
	i := slices.IndexFunc(p.Services, func(s *Service) bool { return s.Program == "config-watcher" })
	return p.Services[i]
}

// New makes the plan. Everything wrong with the mesh is reported at once, joined.
func New(m *mesh.Mesh, o Options) (*Plan, error) {
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
	for _, pod := range p.Pods {
		if pod.Kind == Gateway {
			urls, warnings := gatewayURLs(m, pod)
			p.URLs = append(p.URLs, urls...)
			p.Warnings = append(p.Warnings, warnings...)
		}
	}
	return p, nil
}

// LongestPodID of the mesh's Deployments, for rundir.NewLayout.
func LongestPodID(m *mesh.Mesh) string {
	longest := ""
	for _, d := range m.Deployments {
		id := fmt.Sprintf("%s-%d.%s", d.Name, max(replicas(d)-1, 0), d.Namespace)
		if len(id) > len(longest) {
			longest = id
		}
	}
	return longest
}

func replicas(d mesh.Deployment) int {
	if d.Spec.Replicas == nil {
		return 1
	}
	return int(*d.Spec.Replicas)
}
