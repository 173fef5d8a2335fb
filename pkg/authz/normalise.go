package authz

import (
	"fmt"
	"strings"

	meshv1alpha1 "istio.io/api/mesh/v1alpha1"
)

// NormalisePath returns the path as policies see it after the proxy's normalisation. It is Envoy's:
// tests/oracle/decisions compares them.
func NormalisePath(path string, kind meshv1alpha1.MeshConfig_ProxyPathNormalization_NormalizationType) string {
	if kind == meshv1alpha1.MeshConfig_ProxyPathNormalization_NONE || !strings.HasPrefix(path, "/") {
		return path
	}
	end := strings.IndexAny(path, "?#")
	if end < 0 {
		end = len(path)
	}
	path, rest := path[:end], path[end:]
	if kind == meshv1alpha1.MeshConfig_ProxyPathNormalization_DECODE_AND_MERGE_SLASHES {
		path = strings.NewReplacer("%2f", "/", "%2F", "/", "%5c", `\`, "%5C", `\`).Replace(path)
	}
	path = withoutDots(strings.ReplaceAll(canonical(withoutParameters(path)), `\`, "/"))
	switch kind {
	case meshv1alpha1.MeshConfig_ProxyPathNormalization_MERGE_SLASHES, meshv1alpha1.MeshConfig_ProxyPathNormalization_DECODE_AND_MERGE_SLASHES:
		if len(path) > 1 && strings.Trim(path, "/") == "" {
			path = "//" // Envoy leaves two
			break
		}
		for strings.Contains(path, "//") {
			path = strings.ReplaceAll(path, "//", "/")
		}
	default:
	}
	return path + rest
}

// withoutParameters cuts what follows a ";" in segments of dots alone.
func withoutParameters(path string) string {
	segments := strings.Split(path, "/")
	for i, s := range segments {
		if name, _, ok := strings.Cut(s, ";"); ok && (name == "." || name == "..") {
			segments[i] = name
		}
	}
	return strings.Join(segments, "/")
}

// canonical decodes the percent-encoded characters that need not be encoded (RFC 3986, section 2.3), and encodes those
// that a path does not have. A "%" that begins no code is kept, unless what is decoded behind it would make a code of
// it.
func canonical(path string) string {
	var out []byte
	open := -3 // where such a "%" is in out
	for i := 0; i < len(path); i++ {
		c := path[i]
		switch {
		case c == '%' && i+2 < len(path) && hex(path[i+1]) >= 0 && hex(path[i+2]) >= 0:
			decoded := byte(hex(path[i+1])<<4 | hex(path[i+2]))
			if !unreserved(decoded) {
				out = append(out, path[i:i+3]...)
				i += 2
				continue
			}
			out = append(out, decoded)
			i += 2
			behind := string(out[max(open, 0)+1:])
			if open == len(out)-2 && i+1 < len(path) {
				behind += string(path[i+1])
			}
			if open >= len(out)-3 && len(behind) == 2 && hex(behind[0]) >= 0 && hex(behind[1]) >= 0 {
				out = append(out[:open+1], append([]byte("25"), out[open+1:]...)...)
			}
		case c == '%':
			open = len(out)
			out = append(out, c)
		case c <= ' ' || c >= 0x7f || strings.IndexByte("\"<>^`{|}", c) >= 0:
			out = fmt.Appendf(out, "%%%02X", c)
		default:
			out = append(out, c)
		}
	}
	return string(out)
}

func hex(c byte) int {
	switch {
	case '0' <= c && c <= '9':
		return int(c - '0')
	case 'a' <= c && c <= 'f':
		return int(c-'a') + 10
	case 'A' <= c && c <= 'F':
		return int(c-'A') + 10
	}
	return -1
}

func unreserved(c byte) bool {
	return 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || '0' <= c && c <= '9' || strings.IndexByte("-._~", c) >= 0
}

// withoutDots removes the segments "." and ".." (RFC 3986, section 5.2.4).
func withoutDots(path string) string {
	segments := strings.Split(path[1:], "/")
	var out []string
	for i, s := range segments {
		last := i == len(segments)-1
		switch s {
		case "..":
			if len(out) > 0 {
				out = out[:len(out)-1]
			}
		case ".":
		default:
			out = append(out, s)
			continue
		}
		if last {
			out = append(out, "")
		}
	}
	return "/" + strings.Join(out, "/")
}
