package route

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	networking "istio.io/api/networking/v1alpha3"

	"fairlead.dev/pkg/proxytext"
)

// headerOperations are Istio's header operations in Envoy's form. Setting "host" or ":authority" is a rewrite of the
// authority in Envoy.
type headerOperations struct {
	requestAdd     []*corev3.HeaderValueOption
	requestRemove  []string
	responseAdd    []*corev3.HeaderValueOption
	responseRemove []string
	authority      string
}

func headers(in *networking.Headers) (headerOperations, error) {
	var out headerOperations
	request, response := in.GetRequest(), in.GetResponse()
	for _, part := range []struct {
		field  string
		values map[string]string
		action corev3.HeaderValueOption_HeaderAppendAction
		into   *[]*corev3.HeaderValueOption
	}{
		{"request.set", request.GetSet(), corev3.HeaderValueOption_OVERWRITE_IF_EXISTS_OR_ADD, &out.requestAdd},
		{"request.add", request.GetAdd(), corev3.HeaderValueOption_APPEND_IF_EXISTS_OR_ADD, &out.requestAdd},
		{"response.set", response.GetSet(), corev3.HeaderValueOption_OVERWRITE_IF_EXISTS_OR_ADD, &out.responseAdd},
		{"response.add", response.GetAdd(), corev3.HeaderValueOption_APPEND_IF_EXISTS_OR_ADD, &out.responseAdd},
	} {
		options, err := headerOptions(part.values, part.action)
		if err != nil {
			return headerOperations{}, fmt.Errorf("headers.%s%w", part.field, err)
		}
		*part.into = append(*part.into, options...)
	}
	out.authority = authority(request.GetSet())
	if out.authority == "" {
		out.authority = authority(request.GetAdd())
	}
	out.requestRemove = removable(request.GetRemove())
	out.responseRemove = removable(response.GetRemove())
	return out, nil
}

func headerOptions(values map[string]string, action corev3.HeaderValueOption_HeaderAppendAction) ([]*corev3.HeaderValueOption, error) {
	var out []*corev3.HeaderValueOption
	for _, name := range slices.Sorted(maps.Keys(values)) {
		if isReserved(name) {
			continue
		}
		if err := proxytext.HeaderValue(values[name]); err != nil {
			return nil, fmt.Errorf("[%q]: value %q: %w", name, values[name], err)
		}
		out = append(out, &corev3.HeaderValueOption{
			Header:       &corev3.HeaderValue{Key: name, Value: values[name]},
			AppendAction: action,
			// Istio allows empty values; without this Envoy drops such a header.
			KeepEmptyValue: values[name] == "",
		})
	}
	return out, nil
}

func authority(values map[string]string) string {
	for _, name := range slices.Sorted(maps.Keys(values)) {
		if strings.EqualFold(name, "host") || strings.EqualFold(name, ":authority") {
			return values[name]
		}
	}
	return ""
}

// isReserved reports whether Envoy forbids adding or removing the header.
func isReserved(name string) bool {
	return strings.HasPrefix(name, ":") || strings.EqualFold(name, "host")
}

func removable(names []string) []string {
	return slices.DeleteFunc(slices.Clone(names), isReserved)
}
