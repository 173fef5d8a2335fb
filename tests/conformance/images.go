// Package conformance runs the conformance suite of the Gateway API, unmodified, in the cluster that KUBECONFIG names:
// `make conformance` makes one. It is a module of its own, outside of go.work, because the suite brings
// controller-runtime, and versions that decide none of ours.
package conformance

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"path"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/util/yaml"
)

// Images lists the images that manifests name, in order. Files that are not YAML do not count.
func Images(manifests fs.FS) ([]string, error) {
	found := map[string]bool{}
	err := fs.WalkDir(manifests, ".", func(name string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() || path.Ext(name) != ".yaml" {
			return err
		}
		file, err := manifests.Open(name)
		if err != nil {
			return err
		}
		defer file.Close()
		for decoder := yaml.NewYAMLOrJSONDecoder(file, 4096); ; {
			var object any
			err := decoder.Decode(&object)
			if errors.Is(err, io.EOF) {
				return nil
			}
			if err != nil {
				return fmt.Errorf("%s: %w", name, err)
			}
			collect(object, found)
		}
	})
	return slices.Sorted(maps.Keys(found)), err
}

// collect adds the values of all fields `image` below a value.
func collect(value any, found map[string]bool) {
	switch value := value.(type) {
	case map[string]any:
		for key, v := range value {
			if name, ok := v.(string); ok && key == "image" {
				found[name] = true
				continue
			}
			collect(v, found)
		}
	case []any:
		for _, v := range value {
			collect(v, found)
		}
	}
}

// Sources are where the programs of the suite's images come from.
type Sources struct {
	// Bin has echo-basic, Istio the programs server and client, CoreDNS coredns.
	Bin, Istio, CoreDNS string
	// IstioSource is the module with the certificates of the server.
	IstioSource string
}

// Arguments are those of tools/image, but the archive's name, that build an image of the manifests.
func (s Sources) Arguments(image string) ([]string, error) {
	repository, _, _ := strings.Cut(image, ":")
	args := []string{"-name", image}
	switch path.Base(repository) {
	case "echo-basic":
		return append(args, "-binary", path.Join(s.Bin, "echo-basic"), "-user", "65532:65532"), nil
	case "echo-advanced":
		// Of another user than sidecars, whose own connections are not redirected.
		certificates := path.Join(s.IstioSource, "tests/testdata/certs/dns")
		return append(args, "-binary", path.Join(s.Istio, "server"), "-user", "1338:1338",
			"-add", path.Join(s.Istio, "client")+"=/usr/local/bin/client",
			"-add", path.Join(certificates, "cert-chain.pem")+"=/cert.crt", "-add", path.Join(certificates, "key.pem")+"=/cert.key"), nil
	case "coredns":
		return append(args, "-binary", path.Join(s.CoreDNS, "coredns"), "-user", "0:0"), nil
	}
	return nil, fmt.Errorf("nothing builds image %s, which manifests of the suite name: say in tests/conformance/images.go how", image)
}
