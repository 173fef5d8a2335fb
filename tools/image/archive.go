package main

import (
	"archive/tar"
	"bytes"
	"fmt"
	"io"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/static"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

// spec describes an image.
type spec struct {
	tag        name.Tag
	user       string
	created    time.Time
	arch       string
	entrypoint string
	// arguments of the entry point.
	arguments []string
	files     map[string]entry
}

// entry is a file, a directory or a symbolic link of the image.
type entry struct {
	mode int64
	data []byte
	// link is where a symbolic link points; "" for others.
	link string
}

const directory = 0o40000

// passwd names uid 1337, because some programs look their user up.
const (
	passwd = "root:x:0:0:root:/:/sbin/nologin\nistio-proxy:x:1337:1337:Fairlead:/:/sbin/nologin\n"
	group  = "root:x:0:\nistio-proxy:x:1337:\n"
)

// addEntrypoint adds the binary, and sets the image's architecture to the binary's.
func (s *spec) addEntrypoint(host string) error {
	data, err := os.ReadFile(host)
	if err != nil {
		return err
	}
	info, err := inspect(data)
	if err != nil {
		return fmt.Errorf("%s: %w", host, err)
	}
	if info.interpreter != "" {
		return fmt.Errorf("%s is dynamically linked (%s); build it with CGO_ENABLED=0", host, info.interpreter)
	}
	s.arch = info.arch
	s.entrypoint = "/usr/local/bin/" + filepath.Base(host)
	s.put("/tmp", entry{mode: directory | 0o1777})
	s.put("/etc/passwd", entry{mode: 0o644, data: []byte(passwd)})
	s.put("/etc/group", entry{mode: 0o644, data: []byte(group)})
	s.put(s.entrypoint, entry{mode: 0o755, data: data})
	return nil
}

// addFile adds a file, and the libraries and loader of a dynamic executable.
func (s *spec) addFile(host, image string) error {
	data, err := os.ReadFile(host)
	if err != nil {
		return err
	}
	info, err := os.Stat(host)
	if err != nil {
		return err
	}
	mode := int64(0o644)
	if info.Mode()&0o111 != 0 {
		mode = 0o755
	}
	s.put(image, entry{mode: mode, data: data})
	libraries, err := librariesOf(host, data, s.arch)
	if err != nil {
		return err
	}
	for _, p := range libraries {
		data, err := os.ReadFile(p)
		if err != nil {
			return err
		}
		s.put(p, entry{mode: 0o755, data: data})
	}
	return nil
}

// put adds an entry and its parent directories.
func (s *spec) put(p string, e entry) {
	if s.files == nil {
		s.files = map[string]entry{}
	}
	s.files[p] = e
	for dir := path.Dir(p); dir != "/"; dir = path.Dir(dir) {
		if _, ok := s.files[dir]; !ok {
			s.files[dir] = entry{mode: directory | 0o755}
		}
	}
}

// write writes the archive of an image with one layer.
func (s *spec) write(w io.Writer) error {
	layer, err := s.layer()
	if err != nil {
		return err
	}
	image, err := mutate.ConfigFile(empty.Image, &v1.ConfigFile{
		Created: v1.Time{Time: s.created}, Architecture: s.arch, OS: "linux",
		Config: v1.Config{User: s.user, Env: []string{"PATH=/usr/local/bin"}, Entrypoint: []string{s.entrypoint}, Cmd: s.arguments,
			WorkingDir: "/"},
		RootFS: v1.RootFS{Type: "layers"},
	})
	if err != nil {
		return err
	}
	if image, err = mutate.AppendLayers(image, static.NewLayer(layer, types.DockerUncompressedLayer)); err != nil {
		return err
	}
	return tarball.Write(s.tag, image, w)
}

// layer returns the image's file system as a tar, sorted by path.
func (s *spec) layer() ([]byte, error) {
	var buffer bytes.Buffer
	out := tar.NewWriter(&buffer)
	paths := slices.Sorted(maps.Keys(s.files))
	for _, p := range paths {
		if err := s.writeEntry(out, p[1:], s.files[p]); err != nil {
			return nil, err
		}
	}
	err := out.Close()
	return buffer.Bytes(), err
}

func (s *spec) writeEntry(out *tar.Writer, path string, e entry) error {
	header := &tar.Header{Typeflag: tar.TypeReg, Name: path, Mode: e.mode & 0o7777, Size: int64(len(e.data)), ModTime: s.created,
		Format: tar.FormatPAX}
	if e.mode&directory != 0 {
		header.Typeflag, header.Name = tar.TypeDir, path+"/"
	}
	if e.link != "" {
		header.Typeflag, header.Linkname, header.Mode = tar.TypeSymlink, e.link, 0o777
	}
	if err := out.WriteHeader(header); err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	_, err := out.Write(e.data)
	return err
}
