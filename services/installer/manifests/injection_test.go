package manifests_test

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"istio.io/api/annotation"
	admissionv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	"fairlead.dev/pkg/testkit"
	"fairlead.dev/proto/fairlead/contract"
	"fairlead.dev/services/installer/internal/inject"
	"fairlead.dev/services/installer/internal/tag"
)

// injection is what the injector of an installation does.
func injection(t *testing.T, revision string, set ...string) *inject.Config {
	t.Helper()
	objects, err := decode(text(t, withoutCRDs(generate(t, open(t), "minimal", nil, append(set, "revision="+revision)...).Objects)))
	if err != nil {
		t.Fatal(err)
	}
	data := map[string]string{}
	for _, o := range objects {
		if c, ok := o.(*corev1.ConfigMap); ok {
			for k, v := range c.Data {
				data[k] = v
			}
		}
	}
	mesh, err := inject.ParseMesh([]byte(data["mesh"]))
	if err != nil {
		t.Fatal(err)
	}
	config, err := inject.ParseConfig([]byte(data["config"]), []byte(data["values"]), mesh, revision)
	if err != nil {
		t.Fatal(err)
	}
	return config
}

// TestTemplatesOfInjection holds what the templates make of Pods: testdata/injection/in has a Pod for each file, with
// the settings of the installation as its first line.
func TestTemplatesOfInjection(t *testing.T) {
	files, err := filepath.Glob("testdata/injection/in/*.yaml")
	if err != nil || len(files) < 8 {
		t.Fatalf("%d Pods, %v", len(files), err)
	}
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".yaml"), func(t *testing.T) {
			in, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			var pod corev1.Pod
			if err := yaml.UnmarshalStrict(in, &pod); err != nil {
				t.Fatal(err)
			}
			var set []string
			classic, revision := false, ""
			first, _, _ := strings.Cut(string(in), "\n")
			for _, word := range strings.Fields(strings.TrimPrefix(first, "#")) {
				switch {
				case word == "classic":
					classic = true
				case strings.HasPrefix(word, "revision="):
					revision = strings.TrimPrefix(word, "revision=")
				default:
					set = append(set, word)
				}
			}
			result, err := injection(t, revision, set...).Inject(inject.Request{Pod: &pod, NativeSidecars: !classic})
			if err != nil {
				t.Fatal(err)
			}
			out, err := yaml.Marshal(result.Pod)
			if err != nil {
				t.Fatal(err)
			}
			head := ""
			if !result.Injected {
				head = fmt.Sprintf("# not injected: %s\n", result.Reason)
			}
			for _, w := range result.Warnings {
				head += "# " + w + "\n"
			}
			testkit.Golden(t, filepath.Join("testdata/injection/out", filepath.Base(file)), []byte(head+string(out)))
		})
	}
}

// TestNoTextOfAPodBecomesYAML gives a Pod texts that would be containers, arguments and fields if a template wrote them
// as they are. Injection refuses the Pod, or the texts stay texts.
func TestNoTextOfAPodBecomesYAML(t *testing.T) {
	texts := []string{
		"info\n        - --evil\n    - name: evil\n      image: evil\n",
		"info\"\n        - \"--evil\"\n    - name: evil\n      image: \"evil",
		"info'\n    evil: 'true",
		"info, --evil]\n    - name: evil\n      image: evil\n      command: [x",
		"x}\n    - {name: evil, image: evil",
		"15020]\n      - {name: evil}\n",
		"evil: evil", "- evil", "&evil x", "*evil", "!!binary evil", "info # evil", "%evil",
	}
	places := map[string]func(*corev1.Pod, string){
		"label": func(p *corev1.Pod, s string) { p.Labels["app"] = s },
		"canonical name": func(p *corev1.Pod, s string) {
			p.Labels["service.istio.io/canonical-name"], p.Labels["topology.istio.io/network"] = s, s
		},
		"owner": func(p *corev1.Pod, s string) {
			yes := true
			p.OwnerReferences = []metav1.OwnerReference{{APIVersion: "apps/v1" + s, Kind: "ReplicaSet" + s, Name: s, Controller: &yes}}
		},
		"account":   func(p *corev1.Pod, s string) { p.Spec.ServiceAccountName = s },
		"container": func(p *corev1.Pod, s string) { p.Spec.Containers[0].Name = "x" + s },
		"port": func(p *corev1.Pod, s string) {
			p.Spec.Containers[0].Ports = []corev1.ContainerPort{{Name: s, ContainerPort: 1}}
		},
		"metadata": func(p *corev1.Pod, s string) {
			text, _ := json.Marshal(map[string]any{"proxyMetadata": map[string]string{s: s, "A": s}})
			p.Annotations["proxy.istio.io/config"] = string(text)
		},
	}
	// What these say decides which parts the Pod gets.
	parts := []string{annotation.InjectTemplates.Name, annotation.SidecarNativeSidecar.Name, annotation.SidecarUserVolume.Name,
		annotation.SidecarUserVolumeMount.Name}
	for _, a := range annotation.AllResourceAnnotations() {
		if !slices.Contains(parts, a.Name) {
			places["annotation "+a.Name] = func(p *corev1.Pod, s string) { p.Annotations[a.Name] = s }
		}
	}
	for _, more := range []string{"k8s.v1.cni.cncf.io/networks", "prometheus.io/port", "prometheus.io/path"} {
		places["annotation "+more] = func(p *corev1.Pod, s string) { p.Annotations[more] = s }
	}
	config := injection(t, "", "components.cni.enabled=true", "values.pilot.cni.provider=multus", "values.global.mountMtlsCerts=true")
	// shape is what no text may change: containers, how they run, and that nothing is called as the texts ask for.
	shape := func(p *corev1.Pod) string {
		all := []string{fmt.Sprint(p.Spec.HostNetwork, p.Spec.HostPID, p.Spec.SecurityContext.String())}
		for _, list := range [][]corev1.Container{p.Spec.InitContainers, p.Spec.Containers} {
			for i := range list {
				all = append(all, fmt.Sprint(list[i].Name == "evil"), list[i].SecurityContext.String())
				for _, word := range slices.Concat(list[i].Command, list[i].Args) {
					if strings.HasPrefix(word, "--evil") {
						all = append(all, word)
					}
				}
			}
		}
		for i := range p.Spec.Volumes {
			if p.Spec.Volumes[i].Name == "evil" {
				all = append(all, "volume")
			}
		}
		return strings.Join(all, "\n")
	}
	checked := 0
	for place, put := range places {
		for _, template := range []string{"sidecar", "gateway", "grpc-agent", "grpc-simple"} {
			pod := func(text string) (*corev1.Pod, error) {
				p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{
					Name: "web", Namespace: "shop", Labels: map[string]string{"sidecar.istio.io/inject": "true"},
					Annotations: map[string]string{annotation.InjectTemplates.Name: template},
				}, Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "app", Image: "app"}}}}
				if text != "" {
					put(p, text)
				}
				r, err := config.Inject(inject.Request{Pod: p})
				return r.Pod, err
			}
			harmless, err := pod("")
			if err != nil {
				t.Fatal(err)
			}
			for _, text := range texts {
				got, err := pod(text)
				if err != nil {
					continue
				}
				checked++
				if shape(got) != shape(harmless) {
					t.Errorf("%s %q of template %s has another shape:\n%s\ninstead of\n%s", place, text, template, shape(got), shape(harmless))
				}
			}
		}
	}
	if checked < 500 {
		t.Errorf("only %d Pods were injected", checked)
	}
}

// A tag's selectors are those of the injector: what is silenced, and written again from the code, is what the chart
// says.
func TestTagsSelectWhatTheInjectorDoes(t *testing.T) {
	for name, set := range map[string][]string{
		"where somebody asks":  {"revision=default"},
		"where nobody refuses": {"revision=default", "values.sidecarInjectorWebhook.enableNamespacesByDefault=true"},
	} {
		t.Run(name, func(t *testing.T) {
			objects, err := decode(text(t, withoutCRDs(generate(t, open(t), "default", nil, set...).Objects)))
			if err != nil {
				t.Fatal(err)
			}
			found := false
			for _, o := range objects {
				chart, ok := o.(*admissionv1.MutatingWebhookConfiguration)
				if !ok {
					continue
				}
				found = true
				own := chart.DeepCopy()
				if !tag.Deactivate(own) || cmp.Equal(chart, own) {
					t.Error("it is not silenced")
				}
				if changed, unknown := tag.Restore(own); !changed || len(unknown) > 0 {
					t.Errorf("changed: %v; unknown: %v", changed, unknown)
				}
				if diff := cmp.Diff(chart, own); diff != "" {
					t.Error(diff)
				}
			}
			if !found {
				t.Error("no MutatingWebhookConfiguration")
			}
		})
	}
}

// The namespaces that the chart leaves out are those of the code.
func TestNoSystemNamespaceIsInjected(t *testing.T) {
	config := injection(t, "", "values.global.proxy.autoInject=enabled")
	for _, ns := range contract.SystemNamespaces {
		if d := config.Decide(&corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: ns}}); d.Inject {
			t.Errorf("a Pod in %s is injected", ns)
		}
	}
	if d := config.Decide(&corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "shop"}}); !d.Inject {
		t.Errorf("no Pod in another namespace is injected: %s", d.Reason)
	}
}
