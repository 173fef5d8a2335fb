package clustercheck

import (
	"cmp"
	"context"
	"crypto/sha256"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"net/http"
	"net/netip"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/yaml"

	"fairlead.dev/services/installer/internal/kube"
	"fairlead.dev/services/installer/internal/remotesecret"
)

// Cluster is one to look at.
type Cluster struct {
	// Context is what it is called in rows.
	Context string
	Config  *rest.Config
	API     kube.API
	// Namespace and Revision of the control plane; "" is the revision without a name.
	Namespace, Revision string
}

// Names of checks.
const (
	checkServer   = "api-server"
	checkID       = "cluster-id"
	checkTrust    = "trust-domain"
	checkRoots    = "roots"
	checkNetwork  = "network"
	checkGateways = "gateways"
	checkSecrets  = "remote-secrets"
	checkClock    = "clock"
	checkPods     = "pod-ranges"
	checkVIPs     = "service-ranges"
	checkServices = "services"
)

// Labels and names of Istio.
const (
	labelNetwork     = "topology.istio.io/network"
	labelGatewayPort = "networking.istio.io/gatewayPort"
	gatewayPort      = "15443"
	rootConfigMap    = "istio-ca-root-cert"
	defaultID        = "Kubernetes"
	defaultTrust     = "cluster.local"
)

// Facts are what a cluster says of itself.
type Facts struct {
	Cluster
	// away is why the API server does not answer; nothing else is known then.
	away error
	// unread has, by the check, why something could not be read.
	unread map[string]error

	version, uid string
	// skew is how far the API server's clock is ahead of this machine's.
	skew time.Duration
	// controlPlane is true if there is one; id is its cluster's.
	controlPlane bool
	id           string
	trustDomain  string
	aliases      []string
	local        map[string]bool // MeshConfig.serviceSettings, by host
	roots        []*x509.Certificate
	network      string
	gateways     []gateway
	services     map[string]service
	pods         ranges
	vips         ranges
	secrets      []*remote
}

// gateway is an east-west gateway.
type gateway struct {
	name      string
	addresses []string
	hosts     []string
	// resolved are the addresses of hosts, unresolved is why there are none.
	resolved   []netip.Addr
	unresolved error
	// port is the one that other networks call; open is true if the Service has it.
	port string
	open bool
}

// read gathers the facts.
func (c Cluster) read(ctx context.Context, now func() time.Time) *Facts {
	f := &Facts{Cluster: c, unread: map[string]error{}}
	if f.away = f.readServer(ctx, now); f.away != nil {
		return f
	}
	for _, step := range []struct {
		check string
		read  func(context.Context) error
	}{
		{checkID, f.readControlPlane}, {checkTrust, f.readMeshConfig}, {checkRoots, f.readRoots}, {checkNetwork, f.readNetwork},
		{checkSecrets, f.readSecrets}, {checkServices, f.readServices}, {checkPods, f.readPodRanges}, {checkVIPs, f.readServiceRanges},
	} {
		if err := step.read(ctx); err != nil {
			f.unread[step.check] = err
		}
	}
	if f.unread[checkServices] != nil {
		f.unread[checkGateways] = f.unread[checkServices]
	}
	return f
}

// lookupTime bounds the look-up of one name.
const lookupTime = 5 * time.Second

// lookUp resolves the names of gateways that have no address, as config-watcher does.
func (f *Facts) lookUp(ctx context.Context, lookup func(context.Context, string) ([]netip.Addr, error)) {
	for i := range f.gateways {
		g := &f.gateways[i]
		if len(g.addresses) > 0 {
			continue
		}
		for _, host := range g.hosts {
			ctx, cancel := context.WithTimeout(ctx, lookupTime)
			found, err := lookup(ctx, host)
			cancel()
			for _, a := range found {
				g.resolved = append(g.resolved, a.Unmap())
			}
			if err != nil {
				g.unresolved = err
			}
		}
	}
}

// readServer asks for the version, and for the time.
func (f *Facts) readServer(ctx context.Context, now func() time.Time) error {
	client, err := rest.HTTPClientFor(f.Config)
	if err != nil {
		return err
	}
	// The fraction of a second that the header lacks counts as half.
	asked := now()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, strings.TrimSuffix(f.Config.Host, "/")+"/version", http.NoBody)
	if err != nil {
		return err
	}
	resp, err := client.Do(req)
	if err != nil {
		return err
	}
	_ = resp.Body.Close()
	if at, err := http.ParseTime(resp.Header.Get("Date")); err == nil {
		f.skew = at.Add(time.Second / 2).Sub(asked.Add(now().Sub(asked) / 2))
	} else {
		f.unread[checkClock] = errors.New("the API server's answers have no date")
	}
	info, err := f.API.Discovery().ServerVersion()
	if err != nil {
		return err
	}
	f.version = info.GitVersion
	system, err := f.API.CoreV1().Namespaces().Get(ctx, metav1.NamespaceSystem, metav1.GetOptions{})
	if err == nil {
		f.uid = string(system.UID)
	}
	return nil
}

// controlPlanes selects the Deployments that know their cluster's id; fairlead is the one of the compact profile.
const controlPlanes = "app in (config-watcher, fairlead, istiod)"

// readControlPlane looks for a control plane, Fairlead's or Istio's, and what it calls its cluster.
func (f *Facts) readControlPlane(ctx context.Context) error {
	list, err := f.API.AppsV1().Deployments(f.Namespace).List(ctx, metav1.ListOptions{LabelSelector: controlPlanes})
	if err != nil {
		return err
	}
	for i := range list.Items {
		f.controlPlane = true
		for _, c := range list.Items[i].Spec.Template.Spec.Containers {
			for _, arg := range c.Args {
				if id, ok := strings.CutPrefix(arg, "--cluster-id="); ok {
					f.id = id
				}
			}
			for _, env := range c.Env {
				if env.Name == "CLUSTER_ID" && env.Value != "" {
					f.id = env.Value
				}
			}
		}
	}
	if f.controlPlane {
		f.id = cmp.Or(f.id, defaultID)
	}
	return nil
}

func (f *Facts) configMap(ctx context.Context, name string) (*corev1.ConfigMap, error) {
	return f.API.CoreV1().ConfigMaps(f.Namespace).Get(ctx, name, metav1.GetOptions{})
}

// readMeshConfig reads the trust domain, and which services stay in their cluster.
func (f *Facts) readMeshConfig(ctx context.Context) error {
	name := "istio"
	if f.Revision != "" && f.Revision != "default" {
		name += "-" + f.Revision
	}
	f.trustDomain, f.local = defaultTrust, map[string]bool{}
	config, err := f.configMap(ctx, name)
	if apierrors.IsNotFound(err) && !f.controlPlane {
		return nil
	}
	if err != nil {
		return err
	}
	var settings struct {
		TrustDomain        string   `json:"trustDomain"`
		TrustDomainAliases []string `json:"trustDomainAliases"`
		ServiceSettings    []struct {
			Settings struct {
				ClusterLocal bool `json:"clusterLocal"`
			} `json:"settings"`
			Hosts []string `json:"hosts"`
		} `json:"serviceSettings"`
	}
	if err := yaml.Unmarshal([]byte(config.Data["mesh"]), &settings); err != nil {
		return fmt.Errorf("ConfigMap %s/%s: data.mesh: %w", f.Namespace, name, err)
	}
	f.trustDomain, f.aliases = cmp.Or(settings.TrustDomain, defaultTrust), settings.TrustDomainAliases
	for _, s := range settings.ServiceSettings {
		for _, host := range s.Hosts {
			f.local[host] = s.Settings.ClusterLocal
		}
	}
	return nil
}

// readRoots reads the roots that workloads trust.
func (f *Facts) readRoots(ctx context.Context) error {
	config, err := f.configMap(ctx, rootConfigMap)
	if err != nil {
		return err
	}
	if f.roots = certificates([]byte(config.Data["root-cert.pem"])); len(f.roots) == 0 {
		return fmt.Errorf("ConfigMap %s/%s: data[root-cert.pem] has no certificate in PEM", f.Namespace, rootConfigMap)
	}
	return nil
}

// certificates reads the certificates of PEM text, and leaves out what is none.
func certificates(text []byte) (out []*x509.Certificate) {
	for block, rest := pem.Decode(text); block != nil; block, rest = pem.Decode(rest) {
		if c, err := x509.ParseCertificate(block.Bytes); err == nil {
			out = append(out, c)
		}
	}
	return out
}

// fingerprint is how roots are named: the first bytes of their SHA-256.
func fingerprint(c *x509.Certificate) string {
	sum := sha256.Sum256(c.Raw)
	return fmt.Sprintf("%X", sum[:6])
}

func (f *Facts) readNetwork(ctx context.Context) error {
	ns, err := f.API.CoreV1().Namespaces().Get(ctx, f.Namespace, metav1.GetOptions{})
	if err != nil {
		return err
	}
	f.network = ns.Labels[labelNetwork]
	return nil
}

// maxSecrets bounds the entries of remote Secrets that are tried.
const maxSecrets = 100

// readSecrets reads the Secrets that name other clusters.
func (f *Facts) readSecrets(ctx context.Context) error {
	o := metav1.ListOptions{LabelSelector: remotesecret.Label + "=true", Limit: kube.Page}
	list, err := f.API.CoreV1().Secrets(f.Namespace).List(ctx, o)
	if err != nil {
		return err
	}
	f.secrets = entriesOf(list.Items)
	return nil
}

// remedyOf says what to do about something that could not be read.
func remedyOf(err error) string {
	switch {
	case apierrors.IsForbidden(err):
		return "run the check as a user who may read it"
	case apierrors.IsNotFound(err):
		return "install the mesh in this cluster, or name its namespace with --istioNamespace and its revision with --revision"
	case apierrors.IsUnauthorized(err):
		return "renew the credentials of the kubeconfig"
	}
	return "correct what the message names"
}
