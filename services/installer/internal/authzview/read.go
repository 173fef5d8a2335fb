package authzview

import (
	"cmp"
	"encoding/json"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	security "istio.io/api/security/v1beta1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	"fairlead.dev/pkg/authz"
	"fairlead.dev/pkg/lists"
	"fairlead.dev/pkg/meshdefaults"
	"fairlead.dev/pkg/process"
	"fairlead.dev/proto/fairlead/contract"
	"fairlead.dev/services/installer/internal/describe"
	"fairlead.dev/services/installer/internal/inject"
	"fairlead.dev/services/installer/internal/kinds"
	"fairlead.dev/services/installer/internal/meshclient"
	"fairlead.dev/services/installer/internal/objectfile"
)

// Kinds are the kinds of objects that a Mesh is made of; a mesh that runs has no others.
var Kinds = []string{
	"AuthorizationPolicy", "RequestAuthentication", "PeerAuthentication", "Pod", "WorkloadEntry", "Service", "ServiceEntry", "ConfigMap",
}

// judged are the kinds of objects that close what they select if they are refused.
var judged = []string{"AuthorizationPolicy", "RequestAuthentication"}

// controllers are the kinds that make Pods, which files have in their place.
var controllers = []string{"Deployment", "StatefulSet", "DaemonSet", "ReplicaSet", "Job"}

// object is an object of any of these kinds.
type object struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata"`
	Spec              json.RawMessage `json:"spec"`

	location string
	raw      []byte
	// held is true for what config-watcher has in the place of a broken object.
	held bool
}

// Input is what reading files needs.
type Input struct {
	// Stdin reads the standard input.
	Stdin func() ([]byte, error)
	// Refused says by "FILE:LINE" which objects of files config-watcher refuses, and why: analysis.Program.Refused. It
	// is given the standard input if the file "-" is among them.
	Refused func(files []string, stdin []byte) (map[string]string, error)
}

// Load reads a mesh from files and directories, or with "-" from stdin.
func Load(paths []string, in Input) (*Mesh, error) {
	found, refused, err := readFiles(paths, in)
	if err != nil {
		return nil, err
	}
	m, err := build(found, refused, false)
	if err != nil {
		return nil, err
	}
	m.Notes = slices.Clone(m.twice)
	return m, nil
}

// readFiles reads the objects of files, and which of them are refused. Those of other kinds are passed over.
func readFiles(paths []string, in Input) (found []object, refused map[string]string, _ error) {
	take := func(name string, content []byte) error {
		list, err := objectfile.Parse(name, content)
		if err != nil {
			return process.Refused(err)
		}
		for _, o := range list {
			if err := kinds.Check(o); err != nil {
				return err
			}
			if !slices.Contains(Kinds, o.Kind) && !slices.Contains(controllers, o.Kind) {
				continue
			}
			text, err := yaml.YAMLToJSONStrict(o.Raw)
			if err != nil {
				return process.Refused(o.Refuse("", objectfile.CleanYAML(err), "correct the YAML"))
			}
			parsed := object{location: fmt.Sprintf("%s:%d", o.File, o.Line), raw: text}
			if err := json.Unmarshal(text, &parsed); err != nil {
				return process.Refused(o.Refuse("", objectfile.CleanYAML(err), "correct the field"))
			}
			parsed.TypeMeta, parsed.Namespace = o.TypeMeta, o.Namespace
			found = append(found, parsed)
		}
		return nil
	}
	var files []string
	var stdin []byte
	for _, p := range paths {
		if p != "-" {
			files = append(files, p)
			continue
		}
		var err error
		if stdin, err = in.Stdin(); err != nil {
			return nil, nil, err
		}
		if err := take("-", stdin); err != nil {
			return nil, nil, err
		}
	}
	files, err := objectfile.List(files)
	if err != nil {
		return nil, nil, process.Usage(err)
	}
	for _, f := range files {
		content, err := objectfile.ReadFile(f)
		if err != nil {
			return nil, nil, process.Refused(err)
		}
		if err := take(f, content); err != nil {
			return nil, nil, err
		}
	}
	if stdin != nil {
		files = append(files, "-")
	}
	if slices.ContainsFunc(found, func(o object) bool { return slices.Contains(judged, o.Kind) }) {
		refused, err = in.Refused(files, stdin)
	}
	return found, refused, err
}

// build makes a mesh of objects. Of several with one name the first that is not refused counts, as in a mesh, or the
// first of all. refused says by location which are refused; running is true for objects that config-watcher has
// accepted.
func build(objects []object, refused map[string]string, running bool) (*Mesh, error) {
	m := &Mesh{Settings: meshdefaults.MeshConfig(), Running: running}
	byName := map[string]int{}
	var kept []object
	for _, o := range objects {
		id := o.Kind + " " + o.Namespace + "/" + o.Name
		if i, ok := byName[id]; ok {
			passed := o
			if refused[kept[i].location] != "" && refused[o.location] == "" {
				passed, kept[i] = kept[i], o
			}
			m.twice = append(m.twice, fmt.Sprintf("%s: %s %s/%s does not count: %s", passed.location, o.Kind, o.Namespace, o.Name,
				cmp.Or(refused[passed.location], "same object as at "+kept[i].location+"; remove one of them")))
			continue
		}
		byName[id] = len(kept)
		kept = append(kept, o)
	}
	slices.SortStableFunc(kept, func(a, b object) int {
		return cmp.Or(strings.Compare(a.Namespace, b.Namespace), strings.Compare(a.Name, b.Name))
	})
	if err := m.readSettings(kept); err != nil {
		return nil, err
	}
	m.describe.RootNamespace, m.describe.Domain = m.Settings.GetRootNamespace(), "cluster.local"
	for _, o := range kept {
		if o.Namespace == "" {
			// What stands for an object whose namespace cannot be read holds the whole mesh closed.
			o.Namespace = m.Settings.GetRootNamespace()
		}
		if err := m.add(o, cmp.Or(refused[o.location], o.brokenBy())); err != nil {
			return nil, err
		}
	}
	return m, nil
}

// brokenBy says why an object stands for a broken one; empty if it does not.
func (o object) brokenBy() string {
	if !o.held {
		return ""
	}
	at := ""
	if o.location != "" {
		at = " (" + o.location + ")"
	}
	return fmt.Sprintf("it cannot be used%s, and no good version of it is known; `fairlead config status` says why", at)
}

// readSettings reads MeshConfig from the ConfigMap where Istio keeps it.
func (m *Mesh) readSettings(objects []object) error {
	var found *object
	for i, o := range objects {
		if o.Kind == "ConfigMap" && o.Name == "istio" && (found == nil || o.Namespace == contract.SystemNamespace) {
			found = &objects[i]
		}
	}
	if found == nil {
		return nil
	}
	var configMap corev1.ConfigMap
	if err := json.Unmarshal(found.raw, &configMap); err != nil {
		return fmt.Errorf("ConfigMap %s/%s: %w", found.Namespace, found.Name, err)
	}
	text, ok := configMap.Data["mesh"]
	if !ok {
		return nil
	}
	settings, err := inject.ParseMesh([]byte(text))
	if err != nil {
		return process.Refusedf("ConfigMap %s/%s, data.mesh: %w", found.Namespace, found.Name, err)
	}
	m.Settings, m.SettingsKnown = settings, true
	return nil
}

// add adds an object. refused says why it is refused; empty if it is not.
func (m *Mesh) add(o object, refused string) error {
	switch o.Kind {
	case "AuthorizationPolicy":
		spec := &security.AuthorizationPolicy{}
		problem, err := m.readSpec(o, spec)
		if err != nil {
			return err
		}
		problem = cmp.Or(refused, problem)
		m.Policies = append(m.Policies, Policy{
			Policy:  authz.Policy{Namespace: o.Namespace, Name: o.Name, Spec: spec, DryRun: authz.DryRun(o.Annotations), Closed: problem != ""},
			Created: o.CreationTimestamp.Time, Location: o.location, Problem: problem,
		})
	case "RequestAuthentication":
		spec := &security.RequestAuthentication{}
		problem, err := m.readSpec(o, spec)
		if err != nil {
			return err
		}
		m.Tokens = append(m.Tokens, Tokens{Namespace: o.Namespace, Name: o.Name, Spec: spec, Location: o.location,
			Problem: cmp.Or(refused, problem)})
	case "PeerAuthentication":
		parsed, err := describe.Parse(o.raw, o.location)
		if err != nil {
			return err
		}
		parsed.Kind, parsed.Namespace = o.Kind, o.Namespace
		m.describe.Objects = append(m.describe.Objects, parsed)
	case "Service":
		return m.addService(o)
	case "ServiceEntry":
		return m.addServiceEntry(o)
	case "ConfigMap":
	default:
		return m.addWorkload(o)
	}
	return nil
}

// readSpec reads a spec. problem says why it cannot be read whole: what is known of it, such as the selector, still
// counts.
func (m *Mesh) readSpec(o object, into proto.Message) (problem string, err error) {
	if len(o.Spec) == 0 {
		return "", nil
	}
	strict := protojson.Unmarshal(o.Spec, into)
	if strict == nil {
		return "", nil
	}
	text := strings.ReplaceAll(strings.TrimPrefix(strict.Error(), "proto:"), "\u00a0", " ")
	if m.Running {
		return "", (protojson.UnmarshalOptions{DiscardUnknown: true}).Unmarshal(o.Spec, into)
	}
	return strings.TrimSpace(text), onlySelection(o.Spec, into)
}

// onlySelection reads of a spec what says which workloads it is about. Where that cannot be read either, it is about
// all.
func onlySelection(spec json.RawMessage, into proto.Message) error {
	proto.Reset(into)
	var fields map[string]json.RawMessage
	if unreadable := json.Unmarshal(spec, &fields); unreadable != nil {
		fields = nil
	}
	for name := range fields {
		if !slices.Contains([]string{"selector", "targetRef", "targetRefs"}, name) {
			delete(fields, name)
		}
	}
	text, err := json.Marshal(fields)
	if err != nil {
		return err
	}
	if fields == nil || protojson.Unmarshal(text, into) != nil {
		proto.Reset(into)
	}
	return nil
}

func (m *Mesh) addService(o object) error {
	var spec corev1.ServiceSpec
	if err := unmarshal(o, &spec); err != nil {
		return err
	}
	s := &Service{Namespace: o.Namespace, Name: o.Name, Selector: spec.Selector,
		Host: o.Name + "." + o.Namespace + ".svc." + m.describe.Domain}
	for _, p := range spec.Ports {
		port := ServicePort{Name: p.Name, Number: uint32(p.Port), Target: uint32(p.TargetPort.IntVal), TargetName: p.TargetPort.StrVal} //nolint:gosec // ports
		if p.AppProtocol != nil {
			port.Protocol = *p.AppProtocol
		}
		s.Ports = append(s.Ports, port)
	}
	m.Services = append(m.Services, s)
	m.hosts = append(m.hosts, host{s.Host, s.Namespace, true, lists.Map(s.Ports, func(p ServicePort) uint32 { return p.Number })})
	return nil
}

func (m *Mesh) addServiceEntry(o object) error {
	var spec struct {
		Hosts []string
		Ports []struct{ Number uint32 }
	}
	if err := unmarshal(o, &spec); err != nil {
		return err
	}
	for _, name := range spec.Hosts {
		m.hosts = append(m.hosts, host{strings.ToLower(name), o.Namespace, false,
			lists.Map(spec.Ports, func(p struct{ Number uint32 }) uint32 { return p.Number })})
	}
	return nil
}

func unmarshal(o object, into any) error {
	if len(o.Spec) == 0 {
		return nil
	}
	if err := json.Unmarshal(o.Spec, into); err != nil {
		return process.Refusedf("%s %s/%s: spec: %w", o.Kind, o.Namespace, o.Name, err)
	}
	return nil
}

// addWorkload adds a Pod, an object with the template of one, or a WorkloadEntry.
func (m *Mesh) addWorkload(o object) error {
	w := &Workload{Kind: o.Kind, Namespace: o.Namespace, Name: o.Name, Labels: o.Labels, Location: o.location, Ports: map[string]uint32{}}
	annotations := o.Annotations
	var addresses []string
	var pod corev1.PodSpec
	switch o.Kind {
	case "WorkloadEntry":
		var spec struct {
			Address, ServiceAccount string
			Labels                  map[string]string
			Ports                   map[string]uint32
		}
		if err := unmarshal(o, &spec); err != nil {
			return err
		}
		w.ServiceAccount, addresses = spec.ServiceAccount, []string{spec.Address}
		w.Labels = merged(o.Labels, spec.Labels)
		for name, port := range spec.Ports {
			w.Ports[name] = port
		}
	case "Pod":
		if err := unmarshal(o, &pod); err != nil {
			return err
		}
		var status struct{ Status corev1.PodStatus }
		if err := json.Unmarshal(o.raw, &status); err != nil {
			return fmt.Errorf("Pod %s/%s: status: %w", o.Namespace, o.Name, err)
		}
		addresses = append(lists.Map(status.Status.PodIPs, func(ip corev1.PodIP) string { return ip.IP }), status.Status.PodIP)
	default:
		var spec struct{ Template corev1.PodTemplateSpec }
		if err := unmarshal(o, &spec); err != nil {
			return err
		}
		pod, w.Labels, annotations = spec.Template.Spec, spec.Template.Labels, spec.Template.Annotations
	}
	w.readContainers(pod)
	if o.Kind != "WorkloadEntry" {
		w.readInjection(annotations)
	}
	w.ServiceAccount = cmp.Or(w.ServiceAccount, "default")
	for _, text := range addresses {
		if a, err := netip.ParseAddr(text); err == nil && !slices.Contains(w.Addresses, a) {
			w.Addresses = append(w.Addresses, a)
		}
	}
	w.Identity = m.identity(w.Namespace, w.ServiceAccount)
	m.Workloads = append(m.Workloads, w)
	return nil
}

func (w *Workload) readContainers(pod corev1.PodSpec) {
	w.ServiceAccount = cmp.Or(pod.ServiceAccountName, w.ServiceAccount)
	for _, c := range slices.Concat(pod.InitContainers, pod.Containers) {
		for _, p := range c.Ports {
			if p.Name != "" {
				w.Ports[p.Name] = uint32(p.ContainerPort) //nolint:gosec // a port
			}
		}
		if c.Name != meshclient.ProxyContainer {
			continue
		}
		w.Proxy = Sidecar
		if slices.Contains(c.Args, "router") {
			w.Proxy = Gateway
		}
		if slices.Contains(c.Env, corev1.EnvVar{Name: "ISTIO_META_GENERATOR", Value: "grpc"}) {
			w.Proxy = Proxyless
		}
	}
}

// readInjection reads what a Pod asks of injection: not to be injected, or by which template.
func (w *Workload) readInjection(annotations map[string]string) {
	if w.Proxy == ProxyUnknown && cmp.Or(w.Labels[contract.InjectLabel], annotations[contract.InjectLabel]) == "false" {
		w.Proxy, w.NotInjected = NoProxy, true
		return
	}
	for template := range strings.SplitSeq(annotations["inject.istio.io/templates"], ",") {
		switch strings.TrimSpace(template) {
		case "gateway":
			w.Proxy = Gateway
		case "grpc-agent":
			w.Proxy = Proxyless
		}
	}
}

func merged(a, b map[string]string) map[string]string {
	out := map[string]string{}
	for _, m := range []map[string]string{a, b} {
		for k, v := range m {
			out[k] = v
		}
	}
	return out
}

func (m *Mesh) identity(namespace, account string) string {
	return fmt.Sprintf("spiffe://%s/ns/%s/sa/%s", m.Settings.GetTrustDomain(), namespace, account)
}
