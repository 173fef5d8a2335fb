package status

import (
	"strings"

	networking "istio.io/api/networking/v1alpha3"

	configv1 "fairlead.dev/proto/fairlead/config/v1"
	"fairlead.dev/services/config-watcher/internal/kinds"
	"fairlead.dev/services/config-watcher/internal/normalise"
	"fairlead.dev/services/config-watcher/internal/object"
)

// relation says whether a rejected resource is of an object.
type relation int

const (
	// unrelated resources are not made from the object.
	unrelated relation = iota
	// possible resources may be made from it: their names do not tell.
	possible
	// owned resources are made from it.
	owned
)

// Short names of xDS types.
const (
	typeCluster     = "Cluster"
	typeEndpoints   = "ClusterLoadAssignment"
	typeListener    = "Listener"
	typeRoutes      = "RouteConfiguration"
	typeVirtualHost = "VirtualHost"
)

// rejection is what a proxy has rejected.
type rejection struct {
	// kind is the short name of the xDS type.
	kind string
	*configv1.Rejection
	// hosts are the hosts whose resources were certainly rejected, and maybe those of which it is unknown.
	hosts, maybe []string
}

// maxRejected bounds the resources of one rejection that are read.
const maxRejected = 100

func newRejection(typeURL string, r *configv1.Rejection) *rejection {
	out := &rejection{kind: typeURL[strings.LastIndexByte(typeURL, '.')+1:], Rejection: r}
	names := r.GetResourceNames()
	names = names[:min(len(names), maxRejected)]
	for _, name := range names {
		host := hostOfResource(out.kind, name)
		switch {
		case host == "":
		case len(names) == 1 || strings.Contains(r.GetMessage(), name):
			out.hosts = append(out.hosts, host)
		default:
			// Envoy has not said which resource of the response it means.
			out.maybe = append(out.maybe, host)
		}
	}
	return out
}

// text is the rejection in a message.
func (r *rejection) text() string {
	names := r.GetResourceNames()
	return r.kind + " " + object.Cut(strings.Join(names[:min(len(names), maxListed)], ", "), maxWords) + ": " +
		object.Cut(r.GetMessage(), maxWords)
}

// maxWords bounds Envoy's words about one rejection, in bytes.
const maxWords = 500

// hostOfResource is the host that a cluster, endpoints or virtual host is for, by its name; empty if the name does not
// say.
func hostOfResource(kind, name string) string {
	switch kind {
	case typeCluster, typeEndpoints:
		// outbound|80|v1|reviews.default.svc.cluster.local; with _. between the parts on gateways between networks.
		for _, sep := range []string{"|", "_."} {
			if parts := strings.SplitN(name, sep, 4); len(parts) == 4 && strings.HasPrefix(parts[0], "outbound") {
				return strings.ToLower(strings.TrimPrefix(parts[3], "."))
			}
		}
	case typeVirtualHost:
		// 80/reviews.default.svc.cluster.local:80
		host := name[strings.LastIndexByte(name, '/')+1:]
		if i := strings.LastIndexByte(host, ':'); i >= 0 {
			host = host[:i]
		}
		return strings.ToLower(host)
	}
	return ""
}

// hostsOf are the hosts that an object's own resources are for; nil if its resources are not named for hosts.
func hostsOf(o *object.Object, domain string) []string {
	switch body := o.Body.(type) {
	case *networking.DestinationRule:
		return []string{normalise.Host(body.GetHost(), o.Key.Namespace, domain)}
	case *networking.VirtualService:
		var out []string
		for _, h := range body.GetHosts() {
			out = append(out, normalise.Host(h, o.Key.Namespace, domain))
		}
		return out
	case *networking.ServiceEntry:
		return normalise.HostsOf(o, domain)
	}
	return nil
}

// relationTo says whether the rejected resource is of an object with these hosts, see hostsOf.
func (r *rejection) relationTo(k object.Key, hosts []string) relation {
	byHost := func() relation {
		switch {
		case anyHost(hosts, r.hosts):
			return owned
		case anyHost(hosts, r.maybe):
			return possible
		}
		return unrelated
	}
	if k.Group == kinds.GroupNetworking {
		switch k.Kind {
		case "DestinationRule":
			if r.kind == typeCluster || r.kind == typeEndpoints {
				return byHost()
			}
			return unrelated
		case "VirtualService":
			switch r.kind {
			case typeVirtualHost:
				return byHost()
			case typeRoutes, typeListener:
				return possible
			}
			return unrelated
		case "ServiceEntry":
			switch r.kind {
			case typeCluster, typeEndpoints, typeVirtualHost:
				return byHost()
			}
			return possible
		case "WorkloadGroup": // sent to no proxy
			return unrelated
		}
	}
	return possible
}

// anyHost reports whether a pattern, which may begin with "*", matches one of the hosts.
func anyHost(patterns, hosts []string) bool {
	for _, p := range patterns {
		suffix, wildcard := strings.CutPrefix(p, "*")
		for _, h := range hosts {
			if h == p || wildcard && strings.HasSuffix(h, suffix) {
				return true
			}
		}
	}
	return false
}
