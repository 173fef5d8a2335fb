package registry

import (
	networking "istio.io/api/networking/v1alpha3"

	"fairlead.dev/services/config-watcher/internal/object"
)

// Preview says what a whole catalog would become.
type Preview struct {
	// Services become objects, sorted by name.
	Services []PreviewService `json:"services"`
	// Unmatched are the services that no rule matches, or of which only Connect's proxies are registered, sorted.
	Unmatched []string        `json:"unmatched,omitempty"`
	Problems  object.Problems `json:"problems,omitempty"`
}

// PreviewService is one service of a Preview.
type PreviewService struct {
	Name      string `json:"name"`
	Rule      int    `json:"rule"`
	Namespace string `json:"namespace"`
	// Hosts are the service's own and its aliases.
	Hosts    []string      `json:"hosts"`
	Ports    []PreviewPort `json:"ports"`
	ExportTo []string      `json:"exportTo,omitempty"`
	// Account of the instances; "" if they have no identity.
	Account string `json:"account,omitempty"`
	// Joins is the host that gets Share percent of its endpoints' traffic to the instances; "" for none.
	Joins string `json:"joins,omitempty"`
	Share uint32 `json:"share,omitempty"`
	// Instances become endpoints, Ready of them get traffic, and LeftOut are no endpoints.
	Instances int `json:"instances"`
	Ready     int `json:"ready"`
	LeftOut   int `json:"leftOut,omitempty"`
}

// PreviewPort is a port of a service.
type PreviewPort struct {
	Name     string `json:"name"`
	Number   uint32 `json:"number"`
	Protocol string `json:"protocol"`
}

// Preview maps all services of a catalog, and changes nothing. taken, which may be nil, says which object of the mesh
// has a host already; "" for none.
func (r *Registry) Preview(catalog map[string][]Instance, taken func(host string) string) Preview {
	out := Preview{Services: []PreviewService{}}
	names := sortedKeys(catalog)
	shadowed := Shadowed(names)
	for _, name := range names {
		if counts, is := shadowed[name]; is {
			out.Problems = append(out.Problems, r.ShadowedProblem(name, counts))
			continue
		}
		m := r.Map(name, catalog[name])
		out.Problems = append(out.Problems, m.Problems...)
		switch {
		case m.Entry != nil:
			s := r.previewOf(m)
			out.Services = append(out.Services, s)
			for _, host := range s.Hosts {
				if taken == nil || taken(host) == "" {
					continue
				}
				out.Problems = append(out.Problems, object.Problem{Location: r.Source(), Object: m.Entry.Key.String(),
					Field: "host " + host, Reason: taken(host) + " has this host, and the older of the two counts",
					Remedy: "remove the host there, or leave the service out of the rules"})
			}
		case m.Rule < 0:
			out.Unmatched = append(out.Unmatched, name)
		}
	}
	return out
}

func (r *Registry) previewOf(m Mapping) PreviewService {
	se, rule := m.Entry.Body.(*networking.ServiceEntry), r.Rules[m.Rule]
	out := PreviewService{Name: m.Service, Rule: m.Rule, Namespace: rule.Namespace, Hosts: append(se.Hosts[:1:1],
		m.Entry.Registered.Aliases...),
		ExportTo: rule.ExportTo, Account: rule.Account, Joins: rule.Joins, Share: rule.Share, Instances: len(m.Workloads), LeftOut: m.LeftOut}
	for _, p := range se.Ports {
		out.Ports = append(out.Ports, PreviewPort{p.Name, p.Number, p.Protocol})
	}
	for _, o := range m.Workloads {
		if o.Health.Well {
			out.Ready++
		}
	}
	return out
}
