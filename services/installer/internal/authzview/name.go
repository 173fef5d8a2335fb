package authzview

import (
	"fmt"
	"regexp"
	"slices"
	"strings"

	"fairlead.dev/pkg/lists"
	"fairlead.dev/pkg/nearest"
	"fairlead.dev/pkg/process"
	"fairlead.dev/services/installer/internal/objectfile"
)

// spiffe begins identities.
const spiffe = "spiffe://"

// Caller is who calls.
type Caller struct {
	// Name is the caller as it was named.
	Name string
	// Principal is the caller's identity; empty for one who shows no certificate.
	Principal string
	// Workload is nil if none is named.
	Workload *Workload
	// Notes say how the caller was understood.
	Notes []string
}

// Nobody are the names of a caller without a certificate.
var Nobody = []string{"outside", "none"}

// Caller finds a caller by its name: one of Nobody, a SPIFFE id, sa/NAME[.NAMESPACE], or a workload as in Target.
func (m *Mesh) Caller(name, namespace string) (*Caller, error) {
	c := &Caller{Name: name}
	kind, rest, slash := strings.Cut(name, "/")
	switch {
	case slices.Contains(Nobody, name):
		return c, nil
	case strings.HasPrefix(name, spiffe):
		c.Principal = name
	case strings.Contains(name, "/ns/"):
		c.Principal = spiffe + name
	case slash && slices.Contains([]string{"sa", "serviceaccount", "serviceaccounts"}, strings.ToLower(kind)):
		ns, account := namespace, rest
		if before, after, ok := strings.Cut(rest, "."); ok && namespace == "" {
			account, ns = before, after
		}
		if ns == "" {
			ns = objectfile.DefaultNamespace
		}
		c.Principal = m.identity(ns, account)
		if !slices.ContainsFunc(m.Workloads, func(w *Workload) bool { return w.Identity == c.Principal }) {
			c.Notes = append(c.Notes, fmt.Sprintf("no workload runs as %s", c.Principal))
		}
	default:
		target, err := m.Target(name, namespace)
		if err != nil {
			return nil, fmt.Errorf("caller: %w", err)
		}
		w := target.Workloads[0]
		if others := lists.Filter(target.Workloads, func(o *Workload) bool { return o.Identity != w.Identity }); len(others) > 0 {
			return nil, process.Usagef("caller: %s has workloads of several identities, such as %s and %s: name one workload", name, w.Identity,
				others[0].Identity)
		}
		c.Workload, c.Principal = w, w.Identity
		if w.Proxy == NoProxy {
			c.Principal = ""
			c.Notes = append(c.Notes, w.unproxied()+", so it calls in plain text, without an identity")
		}
	}
	return c, nil
}

// Target is what is called.
type Target struct {
	Name string
	// Service is nil if a workload was named.
	Service *Service
	// Workloads are at least one.
	Workloads []*Workload
}

// controller stands for the kinds that make Pods, which are told apart by the names of the Pods alone.
const controller = "controller"

// workloadKinds are the names of kinds of workloads, with the kind that it means; "" for any.
var workloadKinds = map[string]string{
	"po": "Pod", "pod": "Pod", "pods": "Pod", "deploy": controller, "deployment": controller, "deployments": controller, "workload": "",
	"statefulset": controller, "sts": controller, "daemonset": controller, "ds": controller, "job": controller,
	"we": "WorkloadEntry", "workloadentry": "WorkloadEntry",
}

// Target finds what a name means: [KIND/]NAME[.NAMESPACE], or the host of a Service. Without a kind a Pod of exactly
// that name goes before a Service, that one before a Deployment or the like and its Pods, and these before workloads
// whose names begin with it.
func (m *Mesh) Target(name, namespace string) (*Target, error) {
	kind, rest, slash := strings.Cut(name, "/")
	if !slash {
		kind, rest = "", name
	}
	kind = strings.ToLower(kind)
	only, isWorkload := workloadKinds[kind]
	isService := slices.Contains([]string{"svc", "service", "services"}, kind)
	if slash && !isWorkload && !isService || rest == "" {
		return nil, process.Usagef("%q names no workload: write NAME.NAMESPACE, pod/NAME, deploy/NAME or svc/NAME", name)
	}
	var errs []error
	for _, n := range m.readings(rest, namespace) {
		if !isService && only != controller {
			found := m.workloads(n, only, func(w *Workload) bool {
				return w.Name == n.name && (isWorkload || !slices.Contains(controllers, w.Kind))
			})
			if len(found) > 0 {
				return one(name, &Target{Name: name, Workloads: found[:1]}, found)
			}
		}
		if !isWorkload {
			if t, err := m.service(name, n); t != nil || err != nil {
				if err == nil {
					return t, nil
				}
				errs = append(errs, err)
			}
		}
		if isService {
			continue
		}
		found := m.workloads(n, only, func(w *Workload) bool { return w.isOf(n.name) })
		if len(found) == 0 && only != controller {
			found = m.workloads(n, only, func(w *Workload) bool { return strings.HasPrefix(w.Name, n.name) })
		}
		if len(found) > 0 {
			return one(name, &Target{Name: name, Workloads: found}, found)
		}
	}
	if len(errs) > 0 {
		return nil, errs[0]
	}
	return nil, m.notFound(name, rest, namespace)
}

// namespaced is a name; an empty namespace means any.
type namespaced struct{ name, namespace string }

// readings lists what a name may mean.
func (m *Mesh) readings(name, namespace string) []namespaced {
	if namespace != "" {
		return []namespaced{{strings.TrimSuffix(name, "."+namespace), namespace}}
	}
	list := []namespaced{{name, ""}}
	if before, host, ok := strings.Cut(name, "."); ok {
		ns, _, _ := strings.Cut(host, ".svc")
		list = append(list, namespaced{before, ns})
	}
	if i := strings.LastIndexByte(name, '.'); i > 0 {
		list = append(list, namespaced{name[:i], name[i+1:]})
	}
	return list
}

// workloads lists those of a namespace and a kind that are meant.
func (m *Mesh) workloads(n namespaced, kind string, meant func(*Workload) bool) []*Workload {
	return lists.Filter(m.Workloads, func(w *Workload) bool {
		return (n.namespace == "" || w.Namespace == n.namespace) && (kind == "" || kind == controller || w.Kind == kind) && meant(w)
	})
}

// madeSuffix ends the names of Pods that controllers make: after that of a Deployment come the hash of its template and
// random letters, after that of a DaemonSet or a Job random letters, after that of a StatefulSet, or in a mesh of
// `fairlead up`, a number. Kubernetes makes hashes and random letters of consonants and digits alone.
var madeSuffix = regexp.MustCompile(`^(-[bcdfghjklmnpqrstvwxz2456789]{1,10})?-[bcdfghjklmnpqrstvwxz2456789]{5}$|^-[0-9]+$`)

// isOf reports whether a workload is the object of the name that makes Pods, or a Pod that it makes.
func (w *Workload) isOf(name string) bool {
	suffix, begins := strings.CutPrefix(w.Name, name)
	if w.Kind == "Pod" {
		return begins && (suffix == "" || madeSuffix.MatchString(suffix))
	}
	return suffix == "" && begins && slices.Contains(controllers, w.Kind)
}

// one refuses a name that means workloads of several namespaces, or Pods that are not alike.
func one(name string, t *Target, found []*Workload) (*Target, error) {
	var ids []string
	for _, w := range found {
		if w.Namespace != found[0].Namespace || w.ServiceAccount != found[0].ServiceAccount {
			for _, w := range found[:min(len(found), 5)] {
				ids = append(ids, w.ID())
			}
			return nil, process.Usagef("%q may be any of %s; write more of the name, or its namespace", name, strings.Join(ids, ", "))
		}
	}
	return t, nil
}

// service finds a Service; nil if there is none.
func (m *Mesh) service(name string, n namespaced) (*Target, error) {
	found := lists.Filter(m.Services, func(s *Service) bool {
		return s.Name == n.name && (n.namespace == "" || s.Namespace == n.namespace)
	})
	switch len(found) {
	case 0:
		return nil, nil
	case 1:
	default:
		return nil, process.Usagef("%q may be the Service of namespace %s or %s; name it %s.%s, or with -n", name, found[0].Namespace,
			found[1].Namespace, found[0].Name, found[0].Namespace)
	}
	t := &Target{Name: name, Service: found[0], Workloads: lists.Filter(m.Workloads, found[0].selects)}
	if len(t.Workloads) == 0 {
		return nil, fmt.Errorf("no workload is behind Service %s/%s, so nothing enforces policies for it", found[0].Namespace, found[0].Name)
	}
	return t, nil
}

// maxLonger bounds the names that begin with one that is not found.
const maxLonger = 3

// notFound says that nothing has the name, and what has a similar one in the namespace, if one was named.
func (m *Mesh) notFound(name, rest, namespace string) error {
	var there []string
	for _, w := range m.WorkloadsIn(namespace) {
		there = append(there, w.ID(), w.Name)
	}
	for _, s := range m.Services {
		if namespace == "" || s.Namespace == namespace {
			there = append(there, s.Name+"."+s.Namespace, s.Name)
		}
	}
	text := fmt.Sprintf("no workload and no Service is named %q", name)
	before, port, isPort := strings.Cut(rest, ":")
	switch {
	case isPort:
		return fmt.Errorf("%s; write the port as --port %s after %s", text, port, before)
	case len(there) == 0 && namespace != "":
		return fmt.Errorf("%s: namespace %q has none; correct -n", text, namespace)
	case len(there) == 0:
		return fmt.Errorf("%s: the mesh has none; name files that have its Deployments, Pods and Services", text)
	case namespace != "":
		text += " in namespace " + namespace
	}
	var longer []string
	for _, w := range m.WorkloadsIn(namespace) {
		begins := slices.ContainsFunc(m.readings(rest, namespace), func(n namespaced) bool {
			return strings.HasPrefix(w.Name, n.name) && (n.namespace == "" || n.namespace == w.Namespace)
		})
		if begins && len(longer) < maxLonger {
			longer = append(longer, w.ID())
		}
	}
	if len(longer) > 0 {
		return fmt.Errorf("%s; so begins the name of %s", text, strings.Join(longer, ", "))
	}
	return fmt.Errorf("%s%s", text, nearest.Hint(rest, there))
}
