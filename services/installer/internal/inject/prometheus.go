package inject

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"istio.io/api/annotation"
	corev1 "k8s.io/api/core/v1"
)

// scrapeVariable tells the agent what Prometheus would have scraped.
const scrapeVariable = "ISTIO_PROMETHEUS_ANNOTATIONS"

// securePortVariable is the port of the proxy's metrics behind mutual TLS; the annotation tells it to Prometheus.
const (
	securePortVariable   = "ENVOY_SECURE_MERGED_METRICS_PORT"
	securePortAnnotation = "prometheus.istio.io/secure-port"
)

// Annotations of Prometheus, as its service discovery writes them: any other character is an underscore.
const (
	scrapeLabel  = "prometheus_io_scrape"
	portLabel    = "prometheus_io_port"
	pathLabel    = "prometheus_io_path"
	targetsLabel = "prometheus_istio_io_scrape_targets"
	secureLabel  = "prometheus_istio_io_secure_port"
)

// scrape is the content of scrapeVariable.
type scrape struct {
	Scrape  string         `json:"scrape"`
	Path    string         `json:"path"`
	Port    string         `json:"port"`
	Targets []scrapeTarget `json:"targets,omitempty"`
}

type scrapeTarget struct {
	Port string `json:"port"`
	Path string `json:"path"`
}

// reservedPorts are the proxy's own, which have no metrics of the application.
var reservedPorts = map[int]string{
	15000: "Envoy's administration", 15001: "outbound traffic", 15004: "the control plane's debug pages", 15006: "inbound traffic",
	15008: "HBONE", 15020: "the agent's status and merged metrics", 15021: "Envoy's health", 15053: "DNS",
	15090: "Envoy's metrics, which are merged anyway",
}

// prometheusLabel returns the name that Prometheus gives an annotation.
func prometheusLabel(name string) string {
	return strings.Map(func(r rune) rune {
		if r == '_' || r >= '0' && r <= '9' || r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' {
			return r
		}
		return '_'
	}, name)
}

// mergePrometheus points Prometheus to the agent, which adds the application's metrics to the proxy's, and tells the
// agent where those are.
func (in *injection) mergePrometheus(pod *corev1.Pod) error {
	if !in.wantsPrometheus(pod.Annotations) {
		return nil
	}
	agent := in.statusPort()
	if port, ok := prometheusPort(pod); ok && port == agent {
		return nil // the user's, or an earlier injection's
	}
	s, err := in.scrapeOf(pod.Annotations)
	if err != nil {
		return err
	}
	if proxy := anyContainer(pod, proxyContainer); proxy != nil && (s.Scrape+s.Path+s.Port != "" || len(s.Targets) > 0) {
		text, err := json.Marshal(s)
		if err != nil {
			return err
		}
		proxy.Env = append(proxy.Env, corev1.EnvVar{Name: scrapeVariable, Value: string(text)})
	}
	clearPrometheus(pod)
	annotate(pod, "prometheus.io/port", agent)
	annotate(pod, "prometheus.io/path", "/stats/prometheus")
	annotate(pod, "prometheus.io/scrape", "true")
	return nil
}

// wantsPrometheus reports false if the Pod is not to be scraped, or the annotation or the mesh wants no merging.
func (in *injection) wantsPrometheus(annotations map[string]string) bool {
	for _, name := range sortedKeys(annotations) {
		if prometheusLabel(name) != scrapeLabel {
			continue
		}
		if want, err := strconv.ParseBool(annotations[name]); err == nil {
			if !want {
				return false
			}
			break
		}
	}
	if text, ok := annotations[annotation.PrometheusMergeMetrics.Name]; ok {
		want, err := strconv.ParseBool(text)
		return err == nil && want
	}
	merge := in.config.mesh.GetEnablePrometheusMerge()
	return merge == nil || merge.GetValue()
}

func (in *injection) scrapeOf(annotations map[string]string) (scrape, error) {
	var s scrape
	portFrom := ""
	for _, name := range sortedKeys(annotations) {
		value := annotations[name]
		switch prometheusLabel(name) {
		case scrapeLabel:
			s.Scrape = value
		case pathLabel:
			s.Path = value
		case portLabel:
			s.Port, portFrom = value, name
		case targetsLabel:
			targets, ok := scrapeTargets(value)
			if !ok {
				in.warn("the annotation %s is %q, which has no effect; list ports and paths, such as 8080:/metrics,9090", name, value)
			}
			for _, t := range targets {
				if err := in.checkScraped(t.Port); err != nil {
					return s, badAnnotation(name, value, err)
				}
			}
			s.Targets = targets
		}
	}
	if len(s.Targets) > 0 {
		s.Port, s.Path = s.Targets[0].Port, s.Targets[0].Path // for agents that know no targets
	} else if s.Port != "" {
		if err := in.checkScraped(s.Port); err != nil {
			return s, badAnnotation(portFrom, s.Port, err)
		}
	}
	return s, nil
}

// scrapeTargets reads PORT[:PATH],…; ok is false if an entry lacks its port.
func scrapeTargets(text string) (targets []scrapeTarget, ok bool) {
	for entry := range strings.SplitSeq(text, ",") {
		if entry = strings.TrimSpace(entry); entry == "" {
			continue
		}
		port, path, _ := strings.Cut(entry, ":")
		t := scrapeTarget{Port: strings.TrimSpace(port), Path: strings.TrimSpace(path)}
		if t.Port == "" {
			return nil, false
		}
		if t.Path == "" {
			t.Path = "/metrics"
		}
		targets = append(targets, t)
	}
	return targets, true
}

func (in *injection) checkScraped(text string) error {
	port, err := strconv.Atoi(text)
	if err != nil || port < 1 || port > 65535 {
		return fmt.Errorf("%q is no port; name one between 1 and 65535", text)
	}
	use, reserved := reservedPorts[port]
	if strconv.Itoa(port) == in.statusPort() {
		use, reserved = "the agent", true
	}
	if reserved {
		return fmt.Errorf("port %d is the proxy's own, for %s; name a port of the application", port, use)
	}
	return nil
}

// prometheusPort returns the port that the annotations name.
func prometheusPort(pod *corev1.Pod) (string, bool) {
	for _, name := range sortedKeys(pod.Annotations) {
		if prometheusLabel(name) == portLabel {
			return pod.Annotations[name], true
		}
	}
	return "", false
}

// clearPrometheus removes every spelling of the annotations, of which Prometheus takes any.
func clearPrometheus(pod *corev1.Pod) {
	maps.DeleteFunc(pod.Annotations, func(name, _ string) bool {
		return slices.Contains([]string{scrapeLabel, portLabel, pathLabel, targetsLabel}, prometheusLabel(name))
	})
}

// securePrometheus tells Prometheus the secure port of a proxy that has one, unless the user does.
func securePrometheus(pod *corev1.Pod) {
	for name := range pod.Annotations {
		if prometheusLabel(name) == secureLabel {
			return
		}
	}
	proxy := anyContainer(pod, proxyContainer)
	if proxy == nil {
		return
	}
	for _, v := range proxy.Env {
		if v.Name == securePortVariable && v.Value != "" && v.Value != "0" {
			annotate(pod, securePortAnnotation, v.Value)
			return
		}
	}
}

func sortedKeys[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }
