// Package extensions has the rules of the kinds of group extensions.istio.io.
package extensions

import (
	"fmt"
	"net/url"
	"regexp"
	"slices"

	extensions "istio.io/api/extensions/v1alpha1"
	typev1beta1 "istio.io/api/type/v1beta1"

	"fairlead.dev/services/config-watcher/internal/manifest"
	"fairlead.dev/services/config-watcher/internal/object"
	"fairlead.dev/services/config-watcher/internal/validate/check"
)

type checker struct{ *check.Checker }

// Check applies the rules of the object's kind.
func Check(base *check.Checker, o *object.Object) {
	c := checker{base}
	switch b := o.Body.(type) {
	case *extensions.WasmPlugin:
		c.wasmPlugin(o, b)
	case *extensions.TrafficExtension:
		c.trafficExtension(o, b)
	}
}

var sha256RE = regexp.MustCompile(`^[0-9a-f]{64}$`)

// wasmPlugin refuses plug-ins of the phases that decide about access. Fairlead runs no plug-in, and without these
// access would be open.
func (c checker) wasmPlugin(o *object.Object, w *extensions.WasmPlugin) {
	c.Attached(w.Selector, w.TargetRef, w.TargetRefs)
	c.module("spec", w)
	for i, m := range w.Match {
		c.matchedPorts(manifest.Index("spec.match", i)+".ports", m.Ports)
	}
	if w.Phase == extensions.PluginPhase_AUTHN || w.Phase == extensions.PluginPhase_AUTHZ {
		c.Unenforced(o, "access would not be restricted")
	}
}

// trafficExtension checks the kind that succeeds WasmPlugin, and refuses the same phases.
func (c checker) trafficExtension(o *object.Object, t *extensions.TrafficExtension) {
	c.Attached(t.Selector, nil, t.TargetRefs)
	switch f := t.FilterConfig.(type) {
	case *extensions.TrafficExtension_Wasm:
		c.module("spec.wasm", f.Wasm)
	case *extensions.TrafficExtension_Lua:
		const at, most = "spec.lua.inlineCode", 64 << 10
		switch code := f.Lua.GetInlineCode(); {
		case code == "":
			c.Fail(at, nil, "missing", "write the script")
		case len(code) > most:
			c.Fail(at, nil, "longer than 64 KiB", "shorten the script")
		}
	default:
		c.Fail("spec", nil, "neither wasm nor lua is set", "set one of them")
	}
	for i, m := range t.Match {
		c.matchedPorts(manifest.Index("spec.match", i)+".ports", m.Ports)
	}
	if t.Phase == extensions.TrafficExtension_AUTHN || t.Phase == extensions.TrafficExtension_AUTHZ {
		c.Unenforced(o, "access would not be restricted")
	}
}

// module is a Wasm module in either kind.
type module interface {
	GetUrl() string
	GetSha256() string
	GetImagePullSecret() string
	GetPluginName() string
	GetVmConfig() *extensions.VmConfig
}

func (c checker) module(at string, m module) {
	if m.GetUrl() == "" {
		c.Fail(at+".url", nil, "missing", "say where the module is")
	} else if u, err := moduleURL(m.GetUrl()); err != nil || !slices.Contains([]string{"", "file", "http", "https", "oci"}, u.Scheme) {
		c.Fail(at+".url", m.GetUrl(), "not the URL of a module", `write it with file, http, https or oci, like "oci://registry/image:tag"`)
	}
	if s := m.GetSha256(); s != "" && !sha256RE.MatchString(s) {
		c.Fail(at+".sha256", s, "not a SHA-256", "write 64 digits, 0 to 9 and a to f")
	}
	c.maxLength(at+".imagePullSecret", m.GetImagePullSecret(), 253)
	c.maxLength(at+".pluginName", m.GetPluginName(), 256)
	seen := map[string]int{}
	for i, e := range m.GetVmConfig().GetEnv() {
		at := manifest.Index(at+".vmConfig.env", i)
		c.FailIf(e.Name == "", at+".name", nil, "missing", "name the variable")
		c.maxLength(at+".name", e.Name, 256)
		if first, dup := check.Again(seen, e.Name, i); dup {
			c.Fail(at+".name", e.Name, fmt.Sprintf("same name as env[%d]", first), "keep one of them")
		}
		if e.ValueFrom != extensions.EnvValueSource_INLINE && e.Value != "" {
			c.Fail(at+".value", e.Value, "the value comes from elsewhere", "remove it, or use valueFrom INLINE")
		}
	}
}

// moduleURL parses the URL of a module. The URL of an image in a registry may lack the scheme.
func moduleURL(s string) (*url.URL, error) {
	if u, err := url.ParseRequestURI(s); err == nil {
		return u, nil
	}
	return url.ParseRequestURI("http://" + s)
}

func (c checker) maxLength(at, s string, most int) {
	if len(s) > most {
		c.Fail(at, s, fmt.Sprintf("longer than %d bytes", most), "use a shorter one")
	}
}

func (c checker) matchedPorts(at string, ports []*typev1beta1.PortSelector) {
	for i, p := range ports {
		check.Port(c.Verdict, manifest.Index(at, i)+".number", p.Number)
	}
}
