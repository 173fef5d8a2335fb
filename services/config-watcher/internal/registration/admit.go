package registration

import (
	"cmp"
	"fmt"
	"net/netip"
	"strings"

	"github.com/spiffe/go-spiffe/v2/spiffeid"
	networking "istio.io/api/networking/v1alpha3"

	"fairlead.dev/pkg/auth"
	configv1 "fairlead.dev/proto/fairlead/config/v1"
	"fairlead.dev/services/config-watcher/internal/kinds"
	"fairlead.dev/services/config-watcher/internal/object"
)

// RangesAnnotation of a WorkloadGroup lists, separated by commas, the ranges of addresses that its members may have
// besides the one that their connection comes from: for machines behind a gateway or a NAT.
const RangesAnnotation = "fairlead.dev/registration-addresses"

// Bounds on the WorkloadEntries that registration makes.
const (
	MaxPerIdentity  = 1000
	MaxPerNamespace = 5000
)

// defaultAccount is the service account of a template that names none.
const defaultAccount = "default"

// maxName is the longest name of an object in Kubernetes.
const maxName = 253

// claim is a connected proxy that is entitled to a WorkloadEntry.
type claim struct {
	key      object.Key
	identity string
	group    *object.Object
	address  string
	network  string
	probed   bool
	proxy    *configv1.ProxyStatus
}

// admit says which WorkloadEntry a proxy is entitled to. The error is for whoever runs the machine. The caller holds
// mu.
func (t *Table) admit(p *configv1.ProxyStatus) (*claim, error) {
	r := p.GetRegistration()
	id, err := spiffeid.FromString(p.GetIdentity())
	if err != nil {
		return nil, fmt.Errorf("the proxy has proven no identity")
	}
	namespace, account, ok := auth.WorkloadOf(id)
	if !ok {
		return nil, fmt.Errorf("identity %s is not that of a workload", id)
	}
	of := fmt.Sprintf("WorkloadGroup %s/%s", namespace, r.GetGroup())
	group := t.groups[object.Key{Group: kinds.GroupNetworking, Kind: groupKind, Namespace: namespace, Name: r.GetGroup()}]
	if group == nil {
		return nil, fmt.Errorf("%s does not exist; create it, or correct AUTO_REGISTER_GROUP and the namespace of the proxy", of)
	}
	template := group.Body.(*networking.WorkloadGroup).GetTemplate()
	if want := cmp.Or(template.GetServiceAccount(), defaultAccount); want != account {
		return nil, fmt.Errorf("%s is for service account %q, the proxy has proven %q; give the machine a token of that account, or change "+
			"spec.template.serviceAccount",
			of, want, account)
	}
	address, err := netip.ParseAddr(r.GetAddress())
	if err != nil || address.Zone() != "" || address.IsUnspecified() || address.IsMulticast() {
		return nil, fmt.Errorf("%q is no address that a workload can have; set INSTANCE_IP to the machine's", r.GetAddress())
	}
	address = address.Unmap()
	if address.String() != r.GetPeerAddress() && !inRanges(group, address) {
		return nil, fmt.Errorf("the proxy says that its address is %s, and its connection comes from %q; set INSTANCE_IP to the address that "+
			"the connection comes from, "+
			"or list the addresses of the group's machines in the annotation %s of %s", address, r.GetPeerAddress(), RangesAnnotation, of)
	}
	if want := template.GetNetwork(); want != "" && r.GetNetwork() != "" && want != r.GetNetwork() {
		return nil, fmt.Errorf("%s is of network %q, the proxy says %q; correct ISTIO_META_NETWORK", of, want, r.GetNetwork())
	}
	network := cmp.Or(r.GetNetwork(), template.GetNetwork())
	c := &claim{identity: id.String(), group: group, address: address.String(), network: network, probed: r.GetProbed(), proxy: p}
	c.key = object.Key{Group: kinds.GroupNetworking, Kind: entryKind, Namespace: namespace,
		Name: entryName(r.GetGroup(), c.address, r.GetNetwork())}
	if e := t.entries[c.key]; e != nil && e.Annotations[groupAnnotation] != r.GetGroup() {
		return nil, fmt.Errorf("%s exists and was not made by registration in %s; delete it, or unset AUTO_REGISTER_GROUP", c.key, of)
	}
	return c, nil
}

// entryName is the name that Istio gives the WorkloadEntry of a registered proxy.
func entryName(group, address, network string) string {
	name := group + "-" + strings.ReplaceAll(address, ":", "-")
	if network != "" {
		name += "-" + network
	}
	if len(name) > maxName {
		name = name[len(name)-maxName:]
	}
	return strings.TrimLeft(name, "-.")
}

// inRanges reports whether the group's owner allows an address that its connection does not come from.
func inRanges(group *object.Object, a netip.Addr) bool {
	for text := range strings.SplitSeq(group.Annotations[RangesAnnotation], ",") {
		if r, err := netip.ParsePrefix(strings.TrimSpace(text)); err == nil && r.Contains(a) {
			return true
		}
	}
	return false
}

func errTooMany(whose string, most int) error {
	return fmt.Errorf("%s has %d registered workloads, the most that it may have; stop some, or write the WorkloadEntry yourself", whose, most)
}
