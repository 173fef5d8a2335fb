package class

import (
	"cmp"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	core "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/structpb"

	"fairlead.dev/pkg/proxyconfig"
	configv1 "fairlead.dev/proto/fairlead/config/v1"
	"fairlead.dev/proto/fairlead/contract"
	"fairlead.dev/services/xds-server/internal/mesh"
)

// dnsCaptureMetadata is the metadata entry in which Istio's agents say "true" if they answer DNS queries.
const dnsCaptureMetadata = "DNS_CAPTURE"

// registerGroupMetadata is the metadata entry in which Istio's agents outside of Kubernetes name the WorkloadGroup
// whose members they are.
const registerGroupMetadata = "AUTO_REGISTER_GROUP"

// versionMetadata is the metadata entry in which Fairlead's agents say their release. Istio's have none.
const versionMetadata = "FAIRLEAD_VERSION"

// MaxNodeBytes bounds the node that a proxy sends. Envoy lists some hundreds of extensions in it.
const MaxNodeBytes = 256 << 10

// Bounds on parts of the node.
const (
	maxNodeIDBytes   = 1024
	maxMetadataText  = 4096
	maxReleaseText   = 128
	maxNodeAddresses = 32
	// maxMetadataEntries and maxMetadataBytes bound the text entries that a stream keeps for EnvoyFilters to match, by
	// number and by the bytes of names and values. Istio's agents send some forty of 4 KiB in all; ISTIO_META_ settings
	// of a Pod add to them.
	maxMetadataEntries = 256
	maxMetadataBytes   = 16 << 10
)

// generatorGRPC is the value of metadata GENERATOR that Istio's agents send for proxyless gRPC.
const generatorGRPC = "grpc"

// Errors of ParseNode and Node.Authorize.
var (
	// ErrMalformed means that the node lacks something required, or exceeds a bound.
	ErrMalformed = errors.New("malformed node")
	// ErrForeign means that the node claims another identity than the authenticated caller's.
	ErrForeign = errors.New("node does not belong to the caller")
)

// Node is a proxy's description of itself, bounded and parsed. It decides how the server talks to the proxy, and never
// what the proxy may receive: the authenticated identity and the mesh's Workload of it decide that. Locality and DNS
// domain of the node are not read at all, nor are its labels but for Revision.
type Node struct {
	// ID is Envoy's node.id.
	ID        string
	Type      NodeType
	Name      string
	Namespace string
	// Addresses as claimed, primary first.
	Addresses []string
	// ServiceAccount is the claimed one until Authorize sets the caller's.
	ServiceAccount string
	Interception   Interception
	// Cluster is the id of the cluster that the proxy says it runs in. It only chooses between Workloads that have the
	// proxy's name and service account.
	Cluster string
	// Version of the proxy, AgentVersion of the agent beside it, and Revision, of the control plane that injected it,
	// are for people. "" is unknown.
	Version, AgentVersion, Revision string
	// OnDemand is the value of OnDemandMetadata in the proxy's own ProxyConfig; "" if it has none.
	OnDemand string
	// DNSCapture is true if the proxy's agent answers the workload's DNS queries.
	DNSCapture bool
	// VirtualHosts is true if the proxy can take virtual hosts as resources of their own (VHDS). The stream's protocol
	// decides.
	VirtualHosts bool
	// Identity is the authenticated caller's; Authorize sets it.
	Identity string
	// GatewayTopology is the gateway topology of a router's own ProxyConfig.
	GatewayTopology GatewayTopology
	// ProxyHeaders are the proxy headers of the proxy's own ProxyConfig.
	ProxyHeaders ProxyHeaders
	// RegisterGroup names the WorkloadGroup in which the proxy wants to be registered; "" if it does not.
	// config-watcher decides whether it may.
	RegisterGroup string
	// Filters says which filters of policies the proxy has.
	Filters Filters
	// Probed is true if the proxy's agent probes the application.
	Probed bool
	// Metadata are the text entries, which EnvoyFilters may match.
	Metadata map[string]string
}

// ParseNode parses Istio's node id ("sidecar~<ip>~<name>.<namespace>~<dns domain>") and metadata.
func ParseNode(n *core.Node) (*Node, error) {
	if n == nil || n.GetId() == "" {
		return nil, fmt.Errorf("%w: the first request must carry a node with an id", ErrMalformed)
	}
	if size := proto.Size(n); size > MaxNodeBytes {
		return nil, fmt.Errorf("%w: %d bytes, at most %d are read", ErrMalformed, size, MaxNodeBytes)
	}
	if len(n.GetId()) > maxNodeIDBytes {
		return nil, fmt.Errorf("%w: id of %d bytes", ErrMalformed, len(n.GetId()))
	}
	parts := strings.Split(n.GetId(), "~")
	if len(parts) != 4 {
		return nil, fmt.Errorf("%w: id %q is not of the form type~ip~name.namespace~domain", ErrMalformed, n.GetId())
	}
	node := &Node{ID: n.GetId(), Version: version(n), Filters: filtersOf(n)}
	switch parts[0] {
	case "sidecar":
		node.Type = Sidecar
	case "router":
		node.Type = Router
	default:
		return nil, fmt.Errorf("%w: node type %q is not served, only sidecar and router", ErrMalformed, parts[0])
	}
	dot := strings.LastIndexByte(parts[2], '.')
	if dot <= 0 || dot == len(parts[2])-1 {
		return nil, fmt.Errorf("%w: %q in the id is not name.namespace", ErrMalformed, parts[2])
	}
	node.Name, node.Namespace = parts[2][:dot], parts[2][dot+1:]
	if err := node.readMetadata(n.GetMetadata(), parts[1]); err != nil {
		return nil, err
	}
	return node, nil
}

func (n *Node) readMetadata(meta *structpb.Struct, idAddress string) error {
	m := metadata{fields: meta.GetFields()}
	if ns := m.text("NAMESPACE"); ns != "" && ns != n.Namespace {
		return fmt.Errorf("%w: namespace %q in the metadata, %q in the id", ErrMalformed, ns, n.Namespace)
	}
	n.ServiceAccount = m.text("SERVICE_ACCOUNT")
	n.Cluster = m.text("CLUSTER_ID")
	n.AgentVersion = cmp.Or(m.release(versionMetadata), m.release("ISTIO_VERSION"))
	n.Revision = cmp.Or(m.within("ANNOTATIONS").release(contract.RevisionLabel), m.within("LABELS").release(contract.RevisionLabel))
	n.RegisterGroup = m.text(registerGroupMetadata)
	n.OnDemand = m.text(OnDemandMetadata)
	if n.OnDemand == "" {
		n.OnDemand = m.within("PROXY_CONFIG").within("proxyMetadata").text(OnDemandMetadata)
	}
	var err error
	config := m.fields["PROXY_CONFIG"].GetStructValue().GetFields()
	if n.GatewayTopology, err = gatewayTopology(config["gatewayTopology"]); err != nil {
		return err
	}
	if n.ProxyHeaders, err = proxyHeaders(config["proxyHeaders"]); err != nil {
		return err
	}
	n.Probed = config["readinessProbe"].GetStructValue() != nil
	if n.Type == Sidecar && m.text("GENERATOR") == generatorGRPC {
		n.Type = Proxyless
	}
	switch mode := m.text("INTERCEPTION_MODE"); {
	case n.Type == Proxyless || mode == "NONE":
		n.Interception = None
	case mode == "" || mode == "REDIRECT":
		n.Interception = Redirect
	case mode == "TPROXY":
		n.Interception = TProxy
	default:
		return fmt.Errorf("%w: INTERCEPTION_MODE %q is none of REDIRECT, TPROXY, NONE", ErrMalformed, mode)
	}
	n.DNSCapture, _ = strconv.ParseBool(m.text(dnsCaptureMetadata))
	if n.Metadata, err = m.texts(); err != nil {
		return err
	}
	addresses := strings.Split(m.text("INSTANCE_IPS"), ",")
	if idAddress != "" {
		addresses = slices.Insert(addresses, 0, idAddress)
	}
	for _, a := range addresses {
		ip, err := netip.ParseAddr(strings.TrimSpace(a))
		if err != nil || ip.IsUnspecified() || slices.Contains(n.Addresses, ip.String()) {
			continue
		}
		if n.Addresses = append(n.Addresses, ip.String()); len(n.Addresses) > maxNodeAddresses {
			return fmt.Errorf("%w: more than %d addresses", ErrMalformed, maxNodeAddresses)
		}
	}
	return m.err
}

// metadata reads text fields and remembers the first error.
type metadata struct {
	fields map[string]*structpb.Value
	err    error
}

func (m *metadata) text(name string) string {
	s := m.fields[name].GetStringValue()
	if len(s) > maxMetadataText {
		if m.err == nil {
			m.err = fmt.Errorf("%w: %s of %d bytes", ErrMalformed, name, len(s))
		}
		return ""
	}
	return s
}

// release reads the name of a release or a revision, which every report repeats. A longer text is none.
func (m *metadata) release(name string) string {
	if s := m.fields[name].GetStringValue(); len(s) <= maxReleaseText {
		return s
	}
	return ""
}

// within reads the text fields of an object; what is too long there is left out.
func (m *metadata) within(name string) *metadata {
	return &metadata{fields: m.fields[name].GetStructValue().GetFields()}
}

// texts returns the text entries that are short enough to be matched.
func (m *metadata) texts() (map[string]string, error) {
	count, size := 0, 0
	for k, v := range m.fields {
		if s, ok := matchable(v); ok {
			count++
			size += len(k) + len(s)
		}
	}
	if count > maxMetadataEntries {
		return nil, fmt.Errorf("%w: %d entries of text in the metadata, at most %d are kept", ErrMalformed, count, maxMetadataEntries)
	}
	if size > maxMetadataBytes {
		return nil, fmt.Errorf("%w: entries of text of %d bytes in the metadata, at most %d are kept", ErrMalformed, size, maxMetadataBytes)
	}
	out := make(map[string]string, count)
	for k, v := range m.fields {
		if s, ok := matchable(v); ok {
			out[k] = s
		}
	}
	return out, nil
}

// matchable returns a text value that is short enough to be matched.
func matchable(v *structpb.Value) (string, bool) {
	s, ok := v.GetKind().(*structpb.Value_StringValue)
	if !ok || len(s.StringValue) > maxMetadataText {
		return "", false
	}
	return s.StringValue, true
}

// version is Envoy's, for debug pages.
func version(n *core.Node) string {
	if v := n.GetUserAgentBuildVersion().GetVersion(); v != nil {
		return fmt.Sprintf("%d.%d.%d", v.GetMajorNumber(), v.GetMinorNumber(), v.GetPatch())
	}
	if v := n.GetUserAgentVersion(); len(v) <= maxMetadataText {
		return v
	}
	return ""
}

// Key works out the class of the node, and returns the topics whose change may change the class. Labels, locality,
// network, targets and annotations are those of the mesh's Workload, see Node.Workload: the node's own are not read. A
// proxy without a Workload has none of these, and no credentials.
func (n *Node) Key(state *mesh.Snapshot) (*Key, mesh.Topics) {
	topics := mesh.Topics{}
	topics.Add(mesh.SettingsTopic())
	for _, t := range slices.Concat(state.RelevantLabelsTopics(n.Namespace), mesh.ProxyMatchesTopics(n.Namespace)) {
		topics.Add(t)
	}
	topics.Add(mesh.SelectsCredentialTopic(n.Namespace))
	topics.Add(mesh.WorkloadTopic(n.Namespace, n.Name))
	if n.Cluster != "" {
		topics.Add(mesh.WorkloadTopic(n.Namespace, contract.WorkloadName(n.Name, n.Cluster)))
	}
	w, _ := n.Workload(state) // package serve rejects a node that names the Workload of another service account
	if w.GetName() != n.Name || len(w.GetAddresses()) == 0 {
		for _, a := range n.Addresses {
			topics.Add(mesh.AddressTopic(a))
		}
	}
	k := &Key{
		Type: n.Type, Namespace: n.Namespace, DNSDomain: n.Namespace + ".svc." + state.ClusterDomain(), Interception: n.Interception,
		TrustDomain: state.Mesh().GetTrustDomain(),
	}
	var labels map[string]string
	if w != nil {
		l := w.GetLocality()
		k.Locality = locality(l.GetRegion(), l.GetZone(), l.GetSubzone())
		k.Targets = targets(state, w, n.Type == Router, topics)
		k.OffersMTLS = n.Type == Proxyless && w.GetTlsMode() == configv1.TlsMode_TLS_MODE_ISTIO
		labels = withTopologyLabels(w.GetLabels(), k.Locality, w.GetNetwork(), w.GetCluster())
	}
	topics.Add(mesh.ManyNetworksTopic())
	if state.ManyNetworks() {
		k.Network = w.GetNetwork()
	}
	topics.Add(mesh.ManyClustersTopic())
	if state.ManyClusters() {
		k.Cluster = cmp.Or(w.GetCluster(), state.Cluster())
	}
	addresses := n.addresses(state, w)
	k.DNSCapture, k.Families = n.DNSCapture, familiesOf(addresses)
	for _, t := range mesh.SidecarTopics(n.Namespace, state.Mesh().GetRootNamespace()) {
		topics.Add(t)
	}
	k = k.WithSidecar(state, labels)
	k.VirtualHosts = n.VirtualHosts && n.Type != Proxyless
	k.Labels = state.RelevantLabels(n.Namespace, labels)
	if w != nil && n.hasCredentials(state, k.Labels, topics) {
		k.Identity = n.Identity
	}
	if n.Type == Router {
		k.GatewayTopology = n.GatewayTopology
	}
	k.OnDemand = k.VirtualHosts && n.Type == Sidecar && k.Interception != None && n.onDemand(state, w.GetAnnotations())
	if k.Type == Proxyless {
		// A proxyless gRPC server subscribes to its listeners by address: they depend neither on targets nor on what
		// follows.
		k.Targets = nil
		return k, topics
	}
	k.Filters = n.Filters
	k.ProxyHeaders = n.ProxyHeaders.unlessDefault(state.Mesh().GetDefaultConfig().GetProxyHeaders())
	if k.Interception == None || k.bindsAddress(state) {
		k.Addresses = addresses
	}
	var metadata map[string]string
	state.ProxyMatches(n.Namespace, func(p *mesh.ProxyMatch) {
		if metadata == nil {
			metadata = n.verifiedMetadata(w)
		}
		if p.Meets(metadata) {
			k.ProxyMatches = append(k.ProxyMatches, p.ID)
		}
	})
	slices.Sort(k.ProxyMatches)
	k.ProxyMatches = slices.Compact(k.ProxyMatches)
	return k, topics
}

// hasCredentials reports whether a workload with these labels may have credentials: a gateway, and a workload that a
// DestinationRule with a credentialName selects. A workload is a gateway if a Gateway selects it; that its proxy calls
// itself a router is not enough.
func (n *Node) hasCredentials(state *mesh.Snapshot, labels map[string]string, topics mesh.Topics) bool {
	if n.Type == Router {
		for _, t := range mesh.IsGatewayTopics(n.Namespace, labels) {
			topics.Add(t)
		}
		if state.IsGateway(n.Namespace, labels) {
			return true
		}
	}
	return n.Type != Proxyless && state.SelectsCredential(n.Namespace, labels, "")
}

// OnDemandAnnotation of a workload says "true" or "false": whether its sidecar holds only what it uses. Without the
// annotation the entry OnDemandMetadata of ProxyConfig.proxyMetadata says so, the proxy's own or the mesh's.
const (
	OnDemandAnnotation = "fairlead.dev/on-demand"
	OnDemandMetadata   = proxyconfig.OnDemand
)

// onDemand decides whether the proxy holds only what it uses: the workload's annotation, else the proxy's own setting,
// else the mesh's default.
func (n *Node) onDemand(state *mesh.Snapshot, annotations map[string]string) bool {
	for _, said := range []string{annotations[OnDemandAnnotation], n.OnDemand,
		state.Mesh().GetDefaultConfig().GetProxyMetadata()[OnDemandMetadata]} {
		if on, err := strconv.ParseBool(said); err == nil {
			return on
		}
	}
	return false
}

// targets lists the targets of a workload, with udp also those of UDP ports.
func targets(state *mesh.Snapshot, w *configv1.Workload, udp bool, topics mesh.Topics) []Target {
	var found []Target
	if udp {
		for _, t := range w.GetUdpTargets() {
			found = append(found, Target{Hostname: t.GetHostname(), Namespace: or(t.GetNamespace(), w.GetNamespace()), Port: t.GetPort(),
				TargetPort: t.GetTargetPort(), Protocol: int32(configv1.Protocol_PROTOCOL_UDP)})
		}
	}
	for _, t := range w.GetTargets() {
		target := Target{Hostname: t.GetHostname(), Namespace: or(t.GetNamespace(), w.GetNamespace()), Port: t.GetPort(),
			TargetPort: t.GetTargetPort()}
		topics.Add(mesh.ServiceTopic(target.Hostname))
		for _, p := range state.ServiceIn(target.Hostname, target.Namespace, target.Port).GetPorts() {
			if p.GetNumber() == target.Port && p.GetProtocol() != configv1.Protocol_PROTOCOL_UDP {
				target.Protocol = int32(p.GetProtocol())
			}
		}
		found = append(found, target)
	}
	return found
}

func or(a, b string) string {
	if a != "" {
		return a
	}
	return b
}

func locality(region, zone, subzone string) string {
	return strings.TrimRight(strings.Join([]string{region, zone, subzone}, "/"), "/")
}
