package sim

import (
	"fmt"
	"net/http"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/hetznercloud/hcloud-go/v2/hcloud/schema"
)

// maxServerVolumes is the provider's limit (github.com/hetznercloud/csi-driver/issues/197).
const maxServerVolumes = 16

// volumeMonthly is the price of a GB in euros.
const volumeMonthly = 0.044

func (s *Sim) volumes() *kind[schema.Volume] {
	return &kind[schema.Volume]{
		sim: s, one: "volume", many: "volumes", title: "volume", all: s.st.Volumes,
		show: func(v *schema.Volume) item {
			return item{id: v.ID, name: v.Name, status: v.Status, labels: v.Labels, created: v.Created, body: v}
		},
		name:      func(v *schema.Volume) *string { return &v.Name },
		labels:    func(v *schema.Volume) *map[string]string { return &v.Labels },
		protected: func(v *schema.Volume) *bool { return &v.Protection.Delete },
		create:    s.createVolume, remove: s.removeVolume,
		actions: map[string]action[schema.Volume]{
			"attach": s.attachVolume, "detach": s.detachVolume,
			"resize": s.resizeVolume,
		},
	}
}

func volumeRef(id int64) schema.ActionResourceReference {
	return schema.ActionResourceReference{ID: id, Type: "volume"}
}

func (s *Sim) createVolume(r *http.Request) (any, error) {
	var req schema.VolumeCreateRequest
	if err := decode(r, &req); err != nil {
		return nil, err
	}
	if req.Size < 10 || req.Size > 10240 {
		return nil, invalid("size must be between 10 and 10240", "size")
	}
	l, srv, err := s.volumePlace(req)
	if err != nil {
		return nil, err
	}
	if err := s.volumes().free(req.Name, 0); err != nil {
		return nil, err
	}
	if len(s.st.Volumes) >= s.cfg.Limits.Volumes {
		return nil, &apiError{status: 403, code: "resource_limit_exceeded", message: "volume limit exceeded"}
	}
	labels, err := labelsOf(req.Labels)
	if err != nil {
		return nil, err
	}
	v := &schema.Volume{
		ID: s.st.id(), Name: req.Name, Status: "creating", Location: l, Size: req.Size,
		Format: req.Format, Labels: labels, Created: time.Now().UTC(),
	}
	v.LinuxDevice = fmt.Sprintf("/dev/disk/by-id/scsi-0HC_Volume_%d", v.ID)
	if s.net != nil {
		if err := makeDisk(s.volumeFile(v.ID), v.Size, valueOf(v.Format)); err != nil {
			return nil, err
		}
	}
	s.st.Volumes[v.ID] = v
	s.st.open(LedgerEntry{
		Kind: "volume", ID: v.ID, Name: v.Name, Location: l.Name, Labels: labels,
		Monthly: volumeMonthly * float64(v.Size),
	})
	body := schema.VolumeCreateResponse{NextActions: []schema.Action{}}
	body.Action = new(s.act("create_volume", s.cfg.Profile.Action/4,
		func() *schema.ActionError { v.Status = "available"; return nil }, volumeRef(v.ID)))
	if srv != nil {
		if err := s.plug(v, srv); err != nil {
			return nil, err
		}
		body.NextActions = append(body.NextActions,
			s.act("attach_volume", s.cfg.Profile.Action/4, nil, serverRef(srv.ID), volumeRef(v.ID)))
	}
	body.Volume = *v
	return body, nil
}

// volumePlace is the place of a new volume: a location, or a server's.
func (s *Sim) volumePlace(req schema.VolumeCreateRequest) (schema.Location, *server, error) {
	if req.Server != nil {
		srv, ok := s.st.Servers[*req.Server]
		switch {
		case !ok:
			return schema.Location{}, nil, notFound("server", *req.Server)
		case len(srv.Volumes) >= maxServerVolumes:
			return schema.Location{}, nil, tooManyVolumes()
		}
		return srv.Location, srv, nil
	}
	if req.Location == nil {
		return schema.Location{}, nil, invalid("location is required", "location")
	}
	l, ok := findLocation(idOrName(*req.Location))
	if !ok {
		return l, nil, invalid("location not found", "location")
	}
	return l, nil, nil
}

func tooManyVolumes() error {
	return &apiError{
		status: 403, code: "resource_limit_exceeded",
		message: "server has reached its limit of 16 volumes",
	}
}

func (s *Sim) removeVolume(v *schema.Volume) (any, error) {
	if v.Server != nil {
		return nil, refused("resource_in_use", "volume is still attached to a server")
	}
	delete(s.st.Volumes, v.ID)
	_ = os.Remove(s.volumeFile(v.ID))
	_ = os.RemoveAll(strings.TrimSuffix(s.volumeFile(v.ID), ".img"))
	s.st.close("volume", v.ID)
	return nil, nil
}

// plug attaches a volume to a server that it fits to.
func (s *Sim) plug(v *schema.Volume, srv *server) error {
	if h, on := s.hosts[srv.ID]; on {
		if err := h.attach(v.ID, s.volumeFile(v.ID)); err != nil {
			return err
		}
	}
	v.Server = &srv.ID
	srv.Volumes = append(srv.Volumes, v.ID)
	return nil
}

func (s *Sim) attachVolume(r *http.Request, v *schema.Volume) (any, error) {
	var req struct {
		Server int64 `json:"server"`
	}
	if err := decode(r, &req); err != nil {
		return nil, err
	}
	srv, ok := s.st.Servers[req.Server]
	switch {
	case !ok:
		return nil, notFound("server", req.Server)
	case v.Server != nil:
		return nil, refused("volume_already_attached", "volume is already attached")
	case len(srv.Volumes) >= maxServerVolumes:
		return nil, tooManyVolumes()
	case srv.Location.Name != v.Location.Name:
		return nil, invalid("server is in another location", "server")
	}
	if err := s.plug(v, srv); err != nil {
		return nil, err
	}
	return s.did("attach_volume", nil, volumeRef(v.ID)), nil
}

func (s *Sim) detachVolume(_ *http.Request, v *schema.Volume) (any, error) {
	if v.Server == nil {
		return nil, refused("volume_not_attached", "volume is not attached")
	}
	if srv, ok := s.st.Servers[*v.Server]; ok {
		srv.Volumes = slices.DeleteFunc(srv.Volumes, func(id int64) bool { return id == v.ID })
		if h, on := s.hosts[srv.ID]; on {
			if err := h.detach(v.ID); err != nil {
				return nil, err
			}
		}
	}
	v.Server = nil
	return s.did("detach_volume", nil, volumeRef(v.ID)), nil
}

func (s *Sim) resizeVolume(r *http.Request, v *schema.Volume) (any, error) {
	var req struct {
		Size int `json:"size"`
	}
	if err := decode(r, &req); err != nil {
		return nil, err
	}
	if req.Size <= v.Size || req.Size > 10240 {
		return nil, invalid("size must be larger than the current one", "size")
	}
	if s.net != nil {
		if err := os.Truncate(s.volumeFile(v.ID), int64(req.Size)<<30); err != nil {
			return nil, err
		}
		// A running machine learns of it, as the provider's does.
		if err := growLoops(s.volumeFile(v.ID)); err != nil {
			return nil, err
		}
	}
	v.Size = req.Size
	s.st.reprice("volume", v.ID, "", volumeMonthly*float64(v.Size))
	return s.did("resize_volume", nil, volumeRef(v.ID)), nil
}
