package manifests_test

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	utilyaml "k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/client-go/kubernetes/scheme"

	"fairlead.dev/pkg/testkit"
	"fairlead.dev/services/installer/internal/install"
	"fairlead.dev/services/installer/internal/install/manifest"
	"fairlead.dev/services/installer/internal/install/merge"
	"fairlead.dev/services/installer/internal/install/order"
	"fairlead.dev/services/installer/internal/install/profile"
	"fairlead.dev/services/installer/manifests"
)

var profiles = []string{"compact", "default", "demo", "empty", "external", "ha", "minimal", "multi-tenant", "preview", "remote"}

func open(t testing.TB) *profile.Package {
	t.Helper()
	pkg, err := profile.Open(manifests.FS)
	if err != nil {
		t.Fatal(err)
	}
	return pkg
}

// generate makes the objects of a profile with settings, and of files.
func generate(t testing.TB, pkg *profile.Package, name string, files []string, set ...string) *install.Result {
	t.Helper()
	in := install.Inputs{Inputs: merge.Inputs{Profile: name, Set: set}, Package: pkg}
	if name == "remote" || name == "external" {
		in.Set = append([]string{"values.global.remotePilotAddress=10.1.2.3"}, in.Set...)
	}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		in.Files = append(in.Files, merge.File{Name: file, Text: text})
	}
	result, err := install.Generate(in)
	if err != nil {
		t.Fatal(err)
	}
	return result
}

func text(t testing.TB, objects []*manifest.Object) string {
	t.Helper()
	out, err := order.Text(objects)
	if err != nil {
		t.Fatal(err)
	}
	return string(out)
}

// withoutCRDs leaves out what is a file of its own in charts/base.
func withoutCRDs(objects []*manifest.Object) []*manifest.Object {
	return slices.DeleteFunc(slices.Clone(objects), func(o *manifest.Object) bool { return o.Kind() == "CustomResourceDefinition" })
}

// variants are what each profile is rendered with.
var variants = map[string]struct {
	files, set []string
}{
	"default":    {},
	"revisioned": {set: []string{"revision=canary"}},
	"everything": {files: []string{"testdata/everything.yaml"}},
}

// TestObjectsOfProfiles holds the objects of every profile, by itself, as a revision, and with everything set.
// `go test ./services/installer/manifests -update` rewrites the golden files.
func TestObjectsOfProfiles(t *testing.T) {
	pkg := open(t)
	if names, err := pkg.Names(); err != nil || !slices.Equal(names, profiles) {
		t.Errorf("profiles %v, %v, want %v", names, err, profiles)
	}
	for _, name := range profiles {
		for variant, with := range variants {
			t.Run(name+"/"+variant, func(t *testing.T) {
				result := generate(t, pkg, name, with.files, with.set...)
				if len(result.Warnings) > 0 && variant != "everything" {
					t.Errorf("warnings %q", result.Warnings)
				}
				got := text(t, withoutCRDs(result.Objects))
				if _, err := decode(got); err != nil {
					t.Error(err)
				}
				for _, w := range result.Warnings {
					got = "# " + w + "\n" + got
				}
				testkit.Golden(t, filepath.Join("testdata", name, variant+".yaml"), []byte(got))
			})
		}
	}
}

// codec decodes strictly: an unknown or a repeated field is an error, as it is for an API server that validates fields.
var codec = serializer.NewCodecFactory(scheme.Scheme, serializer.EnableStrict).UniversalDeserializer()

func decode(stream string) ([]runtime.Object, error) {
	var objects []runtime.Object
	var errs []error
	documents := utilyaml.NewYAMLReader(bufio.NewReader(bytes.NewReader([]byte(stream))))
	for {
		document, err := documents.Read()
		if errors.Is(err, io.EOF) {
			return objects, errors.Join(errs...)
		}
		if err != nil {
			return nil, err
		}
		if len(bytes.TrimSpace(document)) == 0 {
			continue
		}
		object, kind, err := codec.Decode(document, nil, nil)
		if err != nil {
			errs = append(errs, fmt.Errorf("%v: %w\n%s", kind, err, document[:min(len(document), 300)]))
			continue
		}
		objects = append(objects, object)
	}
}

// TestNoObjectIsThereTwice holds that no two charts make one object.
func TestNoObjectIsThereTwice(t *testing.T) {
	pkg := open(t)
	for _, name := range profiles {
		for variant, with := range variants {
			seen := map[string]string{}
			for _, o := range generate(t, pkg, name, with.files, with.set...).Objects {
				if by, ok := seen[o.APIVersion()+" "+o.ID()]; ok {
					t.Errorf("%s, %s: %s is made by %s and by %s", name, variant, o.ID(), by, o.Component)
				}
				seen[o.APIVersion()+" "+o.ID()] = o.Component
			}
		}
	}
}

// TestRevisionsShareOnlyWhatIsShared holds that two revisions beside each other have objects in common only of
// components that say so.
func TestRevisionsShareOnlyWhatIsShared(t *testing.T) {
	pkg := open(t)
	other := map[string]bool{}
	for _, o := range generate(t, pkg, "minimal", nil, "revision=canary").Objects {
		other[o.ID()] = true
	}
	for _, o := range generate(t, pkg, "minimal", nil).Objects {
		if c := pkg.Component(o.Component); other[o.ID()] != c.Shared {
			t.Errorf("%s of component %s is an object of both revisions: %v, shared: %v", o.ID(), o.Component, other[o.ID()], c.Shared)
		}
	}
}

// TestSharedTemplatesAreTheOriginals holds the copies in the charts, by which `helm install` needs no other directory.
func TestSharedTemplatesAreTheOriginals(t *testing.T) {
	for _, original := range []string{"_fairlead.tpl", "_services.tpl", "_objects.tpl", "_signer.tpl"} {
		want, err := os.ReadFile(filepath.Join("lib", original))
		if err != nil {
			t.Fatal(err)
		}
		copies, err := filepath.Glob(filepath.Join("charts", "*", "templates", original))
		if err != nil || len(copies) < 4 {
			t.Fatalf("copies %v, %v", copies, err)
		}
		for _, name := range copies {
			testkit.Golden(t, name, want)
		}
	}
}

// TestDefinitionsAreTheFiles holds that every CustomResourceDefinition of charts/base is installed, and stays when Helm
// uninstalls.
func TestDefinitionsAreTheFiles(t *testing.T) {
	pkg := open(t)
	const channel = "gateway-api/experimental"
	for directory, set := range map[string][]string{
		"crds": nil, "gateway-api/standard": {"values.base.enableGatewayAPICRDs=true"},
		channel: {"values.base.enableGatewayAPICRDs=true", "values.base.gatewayAPIChannel=experimental"},
	} {
		files, err := filepath.Glob("charts/base/files/" + directory + "/*.*.*.yaml")
		if err != nil || len(files) < 10 {
			t.Fatalf("files %v, %v", files, err)
		}
		var names []string
		for _, o := range generate(t, pkg, "default", nil, set...).Objects {
			if o.Kind() != "CustomResourceDefinition" || strings.Contains(o.Name(), ".gateway.networking.") != (set != nil) {
				continue
			}
			names = append(names, "charts/base/files/"+directory+"/"+o.Name()+".yaml")
			all := text(t, []*manifest.Object{o})
			if !strings.Contains(all, "helm.sh/resource-policy: keep\n") {
				t.Errorf("%s goes when Helm uninstalls", o.ID())
			}
			if got := strings.Contains(all, "gateway.networking.k8s.io/channel: experimental\n"); got != (directory == channel) {
				t.Errorf("%s of %s is of the experimental channel: %v", o.ID(), directory, got)
			}
		}
		slices.Sort(names)
		if mesh := "charts/base/files/" + channel + "/xmeshes.gateway.networking.x-k8s.io.yaml"; slices.Contains(names, mesh) !=
			(directory == channel) {
			t.Errorf("%s has XMesh, or lacks it", directory)
		}
		if !slices.Equal(names, files) {
			t.Errorf("installed %v, want %v", names, files)
		}
	}
	for _, o := range generate(t, pkg, "default", nil, "values.base.excludedCRDs[0]=sidecars.networking.istio.io").Objects {
		if o.Kind() == "CustomResourceDefinition" &&
			(strings.HasSuffix(o.Name(), ".gateway.networking.k8s.io") || o.Name() == "sidecars.networking.istio.io") {
			t.Errorf("%s is installed", o.ID())
		}
	}
}

// TestRightsInTheRootNamespace: config-watcher reads what Gateways of a class have in common in the root namespace.
func TestRightsInTheRootNamespace(t *testing.T) {
	pkg := open(t)
	for _, profile := range []string{"default", "minimal"} {
		for set, want := range map[string][]string{
			"meshConfig.rootNamespace=root":         {"istio-system", "root"},
			"meshConfig.rootNamespace=istio-system": {"istio-system"},
			"meshConfig.enableTracing=true":         {"istio-system"},
		} {
			found := map[string][]string{}
			for _, o := range generate(t, pkg, profile, nil, set).Objects {
				if o.Name() == "config-watcher" && (o.Kind() == "Role" || o.Kind() == "RoleBinding") {
					found[o.Kind()] = append(found[o.Kind()], o.Namespace())
				}
			}
			for _, kind := range []string{"Role", "RoleBinding"} {
				if slices.Sort(found[kind]); !slices.Equal(found[kind], want) {
					t.Errorf("profile %s with %s: %s in %v, want %v", profile, set, kind, found[kind], want)
				}
			}
		}
	}
}

// Gateways select by the labels app and istio, which stay beside those of the spec.
func TestLabelsOfGatewaysAreAdded(t *testing.T) {
	pkg := open(t)
	for label, want := range map[string]map[string]string{
		"{}":                         {"app": "istio-edge", "istio": "edge"},
		"{team: shop}":               {"app": "istio-edge", "istio": "edge", "team": "shop"},
		"{istio: front, team: shop}": {"app": "istio-edge", "istio": "front", "team": "shop"},
		"{app: '', istio: front}":    {"istio": "front"},
	} {
		file := filepath.Join(t.TempDir(), "operator.yaml")
		spec := "{apiVersion: install.istio.io/v1alpha1, kind: IstioOperator, spec: {components: {ingressGateways: [{name: istio-edge, " +
			"enabled: true, label: " + label + "}]}}}\n"
		if err := os.WriteFile(file, []byte(spec), 0o600); err != nil {
			t.Fatal(err)
		}
		objects, err := decode(text(t, generate(t, pkg, "empty", []string{file}).Objects))
		if err != nil {
			t.Fatal(err)
		}
		found := 0
		for _, o := range objects {
			switch o := o.(type) {
			case *appsv1.Deployment:
				found++
				if got := o.Spec.Selector.MatchLabels; !maps.Equal(got, want) {
					t.Errorf("%s: the Deployment selects %v, want %v", label, got, want)
				}
			case *corev1.Service:
				found++
				if !maps.Equal(o.Spec.Selector, want) {
					t.Errorf("%s: the Service selects %v, want %v", label, o.Spec.Selector, want)
				}
			}
		}
		if found < 2 {
			t.Errorf("%s: no Deployment or no Service among %d objects", label, len(objects))
		}
	}
}
