package normalise

import (
	"net/netip"
	"slices"
	"strings"

	configv1 "fairlead.dev/proto/fairlead/config/v1"
	"fairlead.dev/services/config-watcher/internal/object"
)

// Host turns a short name into an FQDN. As in Istio only a name without a dot is short: "reviews.apps" stays. The
// result is in lower case, without a dot at the end, and IP addresses are in their shortest form, so that hostnames can
// be compared as text.
func Host(name, namespace, domain string) string {
	name = strings.ToLower(name)
	if ip, err := netip.ParseAddr(name); err == nil {
		return ip.String()
	}
	if name == "" || name == "*" || strings.Contains(name, ".") {
		return strings.TrimSuffix(name, ".")
	}
	return name + "." + namespace + ".svc." + domain
}

// entryHost is Host for the hosts of a ServiceEntry, which are complete names even without a dot.
func entryHost(name string) string {
	if !strings.Contains(name, ".") {
		name += "."
	}
	return Host(name, "", "")
}

// exportedToNone is the exportedTo of an object that no namespace sees. No namespace has this name.
const exportedToNone = "~"

// ExportedTo resolves exportTo, or fallback if it is empty, to sorted namespaces; ["*"] means all of them.
func ExportedTo(exportTo, fallback []string, namespace string) []string {
	if len(exportTo) == 0 {
		exportTo = fallback
	}
	if len(exportTo) == 0 {
		return []string{exportedToAll}
	}
	var out []string
	for _, e := range exportTo {
		switch e = strings.TrimSpace(e); e {
		case "*":
			return []string{exportedToAll}
		case ".":
			out = append(out, namespace)
		case "~", "":
		default:
			out = append(out, e)
		}
	}
	if len(out) == 0 {
		return []string{exportedToNone}
	}
	return sortedUnique(out)
}

// VisibleTo reports whether a namespace is among those that ExportedTo has returned.
func VisibleTo(exported []string, namespace string) bool {
	return slices.Contains(exported, exportedToAll) || slices.Contains(exported, namespace)
}

// MeshAnnotations keeps the annotations of Istio and Fairlead. It drops the injector's status, which is large.
func MeshAnnotations(annotations map[string]string) map[string]string {
	var out map[string]string
	for k, v := range annotations {
		domain, _, _ := strings.Cut(k, "/")
		if domain != "istio.io" && !strings.HasSuffix(domain, ".istio.io") && domain != "fairlead.dev" || k == "sidecar.istio.io/status" {
			continue
		}
		if out == nil {
			out = map[string]string{}
		}
		out[k] = v
	}
	return out
}

func sourceRef(o *object.Object) *configv1.SourceRef {
	if o.Origin != nil {
		o = o.Origin
	}
	return &configv1.SourceRef{
		Source: o.Source, ApiVersion: o.APIVersion, Kind: o.Key.Kind, Namespace: o.Key.Namespace, Name: o.Key.Name, Generation: o.Generation,
		Location: o.Location,
	}
}
