package normalise

import (
	"fmt"
	"strings"
	"testing"

	configv1 "fairlead.dev/proto/fairlead/config/v1"
	"fairlead.dev/services/config-watcher/internal/resource"
)

func entry(name, metadata, spec string) string {
	return "---\napiVersion: networking.istio.io/v1\nkind: ServiceEntry\nmetadata: {name: " + name + ", namespace: apps" + metadata +
		"}\nspec: {" + spec + "}\n"
}

func (s *state) service(namespace, host string) *configv1.Service {
	return s.held[resource.Key{Kind: "Service", Namespace: namespace, Name: host}].GetService()
}

func TestAllocatedAddresses(t *testing.T) {
	const ports = ", ports: [{name: http, number: 80, protocol: HTTP}]"
	for name, c := range map[string]struct {
		yaml string
		host string
		want bool
	}{
		"static":               {entry("a", "", "hosts: [a.example.com], resolution: STATIC"+ports), "a.example.com", true},
		"dns":                  {entry("a", "", "hosts: [a.example.com], resolution: DNS"+ports), "a.example.com", true},
		"a name without a dot": {entry("a", "", "hosts: [a], resolution: DNS"+ports), "a", true},
		"each host":            {entry("a", "", "hosts: [b.example.com, a.example.com], resolution: DNS"+ports), "a.example.com", true},
		"none":                 {entry("a", "", "hosts: [a.example.com], resolution: NONE"+ports), "a.example.com", false},
		"given": {entry("a", "", "hosts: [a.example.com], resolution: STATIC, addresses: [10.1.0.0/16]"+ports), "a.example.com",
			false},
		"wildcard": {entry("a", "", "hosts: ['*.example.com'], resolution: STATIC, endpoints: [{address: 1.1.1.1}]"+ports),
			"*.example.com", false},
		"label says no": {entry("a", ", labels: {networking.istio.io/enable-autoallocate-ip: 'false'}",
			"hosts: [a.example.com], resolution: DNS"+ports), "a.example.com", false},
		"label says yes": {entry("a", ", labels: {networking.istio.io/enable-autoallocate-ip: 'true'}",
			"hosts: [a.example.com], resolution: DNS"+ports), "a.example.com", true},
		"a Service":        {service("a", ""), fqdnA, false},
		"a Service's host": {service("a", "") + entry("a", "", "hosts: ["+fqdnA+"], resolution: STATIC"+ports), fqdnA, false},
	} {
		t.Run(name, func(t *testing.T) {
			s := newState(t, c.yaml)
			svc := s.service("apps", c.host)
			if svc == nil {
				t.Fatal("no service")
			}
			if got := len(svc.AutoAddresses) == 2; got != c.want {
				t.Errorf("addresses %v", svc.AutoAddresses)
			}
		})
	}
	s := newState(t, entry("a", "", "hosts: [a.example.com], resolution: DNS"+ports))
	first := fmt.Sprint(s.service("apps", "a.example.com").AutoAddresses)
	s.apply(entry("a", "", "hosts: [b.example.com, a.example.com], resolution: STATIC, exportTo: ['.']"+ports))
	if got := fmt.Sprint(s.service("apps", "a.example.com").AutoAddresses); got != first {
		t.Errorf("%s before an edit, %s after", first, got)
	}
	s.apply(entry("a", "", "hosts: [a.example.com], resolution: DNS, addresses: [10.1.0.1]"+ports))
	if got := s.service("apps", "a.example.com").AutoAddresses; len(got) > 0 {
		t.Errorf("%v although the user gives one", got)
	}
	s.remove("ServiceEntry", "apps", "a")
	if len(s.held) != 1 { // the MeshConfig
		t.Errorf("left: %v", s.held)
	}
}

// TestSeveralObjectsOfOneHost: ServiceEntries of one host and namespace make one Service; a ServiceEntry for the host
// of a Kubernetes Service adds its SANs alone.
func TestSeveralObjectsOfOneHost(t *testing.T) {
	s := newState(t, service("a", "")+pod("a-1", "a", "10.1.0.1", true, "")+
		entry("a", "", "hosts: [a.example.com], resolution: STATIC, addresses: [10.5.0.2, 10.5.1.7/24], subjectAltNames: [xx], endpoints: "+
			"[{address: 10.9.0.1}], ports: [{name: http, number: 80}]")+
		entry("b", "", "hosts: [a.example.com], resolution: STATIC, addresses: [10.5.0.1/32], subjectAltNames: [yy], endpoints: [{address: "+
			"10.9.0.2}], ports: [{name: http, number: 80}, {name: tcp, number: 81}]")+
		entry("c", "", "hosts: ["+fqdnA+"], resolution: DNS, addresses: [10.5.0.9], subjectAltNames: [zz], ports: [{name: tcp, number: 82}]"))
	joined := s.service("apps", "a.example.com")
	if got := fmt.Sprint(joined.Addresses, joined.SubjectAltNames, len(joined.Ports)); got != "[10.5.0.1 10.5.0.2 10.5.1.0/24] [xx yy] 2" {
		t.Error(got)
	}
	if got := s.endpoints("apps", "a.example.com:80/Kubernetes"); got != "10.9.0.1:80, 10.9.0.2:80" {
		t.Error(got)
	}
	if got := s.endpoints("apps", "a.example.com:81/Kubernetes"); got != "10.9.0.2:81" {
		t.Error(got)
	}
	if svc := s.service("apps", fqdnA); len(svc.Ports) != 1 || fmt.Sprint(svc.SubjectAltNames) != "[zz]" ||
		strings.Contains(fmt.Sprint(svc.Addresses), "10.5.0.9") {
		t.Errorf("a decorated Service: %v", svc)
	}
}

// TestNodeOfEndpoints: endpoints carry the label of their node while a rule or the mesh uses it.
func TestNodeOfEndpoints(t *testing.T) {
	s := newState(t, "---\napiVersion: v1\nkind: Pod\nmetadata: {name: a-1, namespace: apps, labels: {app: a}}\nspec: {nodeName: n1, "+
		"containers: []}\n"+
		"status: {phase: Running, podIP: 10.1.0.1, conditions: [{type: Ready, status: 'True'}]}\n"+
		"---\napiVersion: v1\nkind: Service\nmetadata: {name: a, namespace: apps}\nspec: {selector: {app: a}, ports: [{name: http, port: 80}]}\n")
	node := func() string {
		set := s.held[resource.Key{Kind: "EndpointSet", Namespace: "apps", Name: "a.apps.svc.cluster.local:80/Kubernetes"}].GetEndpointSet()
		return set.LabelSets[set.Endpoints[0].LabelSet].Labels[labelHostname]
	}
	rule := func(name, spec string) string {
		return "---\napiVersion: networking.istio.io/v1\nkind: DestinationRule\nmetadata: {name: " + name + ", namespace: apps}\nspec: {" + spec +
			"}\n"
	}
	priority := "trafficPolicy: {outlierDetection: {}, loadBalancer: {localityLbSetting: {failoverPriority: [app, kubernetes.io/hostname]}}}"
	for _, step := range []struct{ name, yaml, want string }{
		{"nobody asks", rule("r", "host: a"), ""},
		{"a rule of another host", rule("r", "host: b, "+priority), ""},
		{"a rule", rule("r", "host: a, "+priority), "n1"},
		{"not any more", rule("r", "host: a"), ""},
		{"a subset of a wildcard's", rule("r", "host: '*.apps.svc.cluster.local', subsets: [{name: near, labels: {kubernetes.io/hostname: n1}}]"),
			"n1"},
		{"nor that", rule("r", "host: a"), ""},
		{
			"a port", rule("r", "host: a, trafficPolicy: {portLevelSettings: [{port: {number: 80}, loadBalancer: {localityLbSetting: "+
				"{failoverPriority: [kubernetes.io/hostname=n2]}}}]}"), "n1"},
	} {
		s.apply(step.yaml)
		if got := node(); got != step.want {
			t.Errorf("%s: node %q, want %q", step.name, got, step.want)
		}
	}
}

func TestBothFamilies(t *testing.T) {
	dual := func(name string, ips string) string {
		return "---\napiVersion: v1\nkind: Pod\nmetadata: {name: " + name +
			", namespace: apps, labels: {app: a}}\nspec: {nodeName: n1, containers: []}\nstatus: {phase: Running, podIPs: " + ips +
			", conditions: [{type: Ready, status: 'True'}]}\n"
	}
	service := func(name, spec string) string {
		return "---\napiVersion: v1\nkind: Service\nmetadata: {name: " + name +
			", namespace: apps}\nspec: {clusterIP: None, selector: {app: a}, ports: [{name: http, port: 80}]" + spec + "}\n"
	}
	s := newState(t, dual("a-1", "[{ip: 10.1.0.1}, {ip: 'fd00::1'}]")+dual("a-2", "[{ip: 10.1.0.2}]")+
		service("any", "")+service("six", ", ipFamilies: [IPv6]")+service("both", ", ipFamilies: [IPv6, IPv4]")+
		service("local", ", internalTrafficPolicy: Local"))
	for name, want := range map[string]string{
		"any": "10.1.0.1[fd00::1] 10.1.0.2", "six": "fd00::1", "both": "10.1.0.2 fd00::1[10.1.0.1]", "local": "10.1.0.1[fd00::1] 10.1.0.2",
	} {
		set := s.held[resource.Key{Kind: "EndpointSet", Namespace: "apps", Name: name + ".apps.svc.cluster.local:80/Kubernetes"}].GetEndpointSet()
		var got []string
		for _, e := range set.GetEndpoints() {
			text := e.Address
			if len(e.AdditionalAddresses) > 0 {
				text += fmt.Sprint(e.AdditionalAddresses)
			}
			got = append(got, text)
			if node := set.LabelSets[e.LabelSet].Labels[labelHostname]; (node == "n1") != (name == "local") {
				t.Errorf("%s: node %q", name, node)
			}
		}
		if strings.Join(got, " ") != want {
			t.Errorf("%s: %v, want %s", name, got, want)
		}
	}
	s.apply(service("slices", ", ipFamilies: [IPv6, IPv4]") +
		"---\napiVersion: discovery.k8s.io/v1\nkind: EndpointSlice\nmetadata: {name: s, namespace: apps, labels: {kubernetes.io/service-name: " +
		"slices}}\n" +
		"addressType: FQDN\nports: [{name: http, port: 80}]\nendpoints: [{addresses: [away.example.com], targetRef: {kind: Pod, name: " +
		"nobody}}, {addresses: [10.1.0.1], targetRef: {kind: Pod, name: a-1}}]\n")
	if got := s.endpoints("apps", "slices.apps.svc.cluster.local:80/Kubernetes"); got != "away.example.com:80, fd00::1:80" {
		t.Errorf("by slices: %s", got)
	}
	if w := s.held[resource.Key{Kind: "Workload", Namespace: "apps", Name: "a-1"}].GetWorkload(); w.Labels[labelHostname] != "n1" {
		t.Errorf("workload %v", w)
	}
	if !s.service("apps", "local.apps.svc.cluster.local").NodeLocal {
		t.Error("internalTrafficPolicy is lost")
	}
	s.apply(service("any", "") + "---\napiVersion: v1\nkind: Service\nmetadata: {name: near, namespace: apps, annotations: " +
		"{networking.istio.io/traffic-distribution: prefersamezone}}\nspec: {ports: [{port: 80}]}\n")
	if got := s.service("apps", "near.apps.svc.cluster.local").TrafficDistribution; got != "PreferSameZone" {
		t.Errorf("trafficDistribution %q", got)
	}
}

// TestAddressesOfNetworks: two networks may use one address for different workloads.
func TestAddressesOfNetworks(t *testing.T) {
	s := newState(t, entry("a", "",
		"hosts: [a.example.com], resolution: STATIC, ports: [{name: http, number: 80}], endpoints: [{address: 10.9.0.1, network: n1}, "+
			"{address: 10.9.0.1, network: n2}, {address: 10.9.0.1, network: n2}]"))
	if got := s.endpoints("apps", "a.example.com:80/Kubernetes"); got != "10.9.0.1:80, 10.9.0.1:80" {
		t.Error(got)
	}
}

// TestSelectorWithoutLabels: a workloadSelector without labels selects all workloads of the namespace, later ones
// included.
func TestSelectorWithoutLabels(t *testing.T) {
	s := newState(t, entry("all", "",
		"hosts: [all.example.com, '*-part.example.com', all.example.com], resolution: STATIC, workloadSelector: {}, ports: [{name: http, "+
			"number: 80, protocol: HTTP}]")+
		pod("a", "a", "10.8.0.1", true, ""))
	const name = "all.example.com:80/Kubernetes"
	if got := s.endpoints("apps", name); got != "10.8.0.1:80 v1" {
		t.Errorf("endpoints %s", got)
	}
	s.apply("apiVersion: networking.istio.io/v1\nkind: WorkloadEntry\nmetadata: {name: vm, namespace: apps}\nspec: {address: 10.8.0.2}\n")
	if got := s.endpoints("apps", name); !strings.Contains(got, "10.8.0.2:80") || !strings.Contains(got, "10.8.0.1:80") {
		t.Errorf("endpoints with a machine %s", got)
	}
	if got := s.targets("apps", "vm"); got != "all.example.com:80>80" {
		t.Errorf("targets of the machine %s", got)
	}
	s.remove("Pod", "apps", "a")
	if got := s.endpoints("apps", name); strings.Contains(got, "10.8.0.1") {
		t.Errorf("endpoints without the Pod %s", got)
	}
	s.remove("ServiceEntry", "apps", "all")
	if got := s.targets("apps", "vm"); got != "" {
		t.Errorf("targets without the ServiceEntry %s", got)
	}
	if s.service("apps", "*-part.example.com") != nil {
		t.Error("a wildcard that is a part of a label makes a service")
	}
}

// TestServiceEntryWithoutPorts: a ServiceEntry without ports makes no Service.
func TestServiceEntryWithoutPorts(t *testing.T) {
	s := newState(t, entry("portless", "", "hosts: [a.example.com], resolution: DNS"))
	if svc := s.service("apps", "a.example.com"); svc != nil {
		t.Errorf("service %v", svc)
	}
}

// TestPodsOfAServiceMayHaveDifferentPorts: Service istiod leads to two kinds of Pods, which are told apart by the names
// of their ports, with the EndpointSlices that Kubernetes makes of it and without any.
func TestPodsOfAServiceMayHaveDifferentPorts(t *testing.T) {
	workload := func(name, ip, port, number string) string {
		return "---\napiVersion: v1\nkind: Pod\nmetadata: {name: " + name + ", namespace: apps, labels: {part: istiod}}\n" +
			"spec: {containers: [{name: c, ports: [{name: " + port + ", containerPort: " + number + "}]}]}\n" +
			"status: {phase: Running, podIP: " + ip + ", conditions: [{type: Ready, status: \"True\"}]}\n"
	}
	slice := func(name, ip, port, number string) string {
		return "---\napiVersion: discovery.k8s.io/v1\nkind: EndpointSlice\nmetadata: {name: a-" + name + ", namespace: apps, labels: " +
			"{kubernetes.io/service-name: a}}\naddressType: IPv4\nendpoints: [{addresses: [" + ip + "], targetRef: {kind: Pod, name: " + name +
			", namespace: apps}}]\nports: [{name: " + port + ", port: " + number + "}]\n"
	}
	s := newState(t, "apiVersion: v1\nkind: Service\nmetadata: {name: a, namespace: apps}\n"+
		"spec: {clusterIP: 10.1.0.1, selector: {part: istiod}, ports: [{name: https-webhook, port: 443, targetPort: https-inject}, "+
		"{name: https-dns, port: 15012, targetPort: tls-xds}]}\n"+
		workload("injector", "10.8.0.1", "https-inject", "15017")+workload("server", "10.8.0.2", "tls-xds", "15012"))
	sliced := slice("injector", "10.8.0.1", "https-webhook", "15017") + slice("server", "10.8.0.2", "https-dns", "15012")
	for _, step := range []string{"", sliced} {
		if step != "" {
			s.apply(step)
		}
		inject, xds := s.endpoints("apps", aHost+":443/Kubernetes"), s.endpoints("apps", aHost+":15012/Kubernetes")
		if inject != "10.8.0.1:15017" || xds != "10.8.0.2:15012" {
			t.Errorf("port 443 leads to %q, port 15012 to %q", inject, xds)
		}
	}
}
