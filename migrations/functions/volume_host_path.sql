-- The directory of a mounted volume that containers get; VolumeHostPath in Go.
CREATE OR REPLACE FUNCTION volume_host_path(p_provider_id text) RETURNS text LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
    SELECT '/mnt/HC_Volume_' || p_provider_id || '/prego'
$$;
